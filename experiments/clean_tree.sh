# clean_tree.sh - read by the scripts that make committed results: ends unless the tracked files are those of the commit.
#
# A row names the commit that measured it, which says nothing where files were changed.  DIRTY=1 measures all the same.
# A row whose commit ends in -dirty is of a tree with changes; say beside the table what they were.  The results
# themselves may differ, because an interrupted run replaces them.
if [ -z "${DIRTY:-}" ]; then
    if ! changed=$(git status --porcelain --untracked-files=no -- . ':!results' 2>&1); then
        echo "results: the commit of these files is unknown ($(echo "$changed" | head -n 1)); DIRTY=1 measures all the same" >&2
        exit 1
    fi
    if [ -n "$changed" ]; then
        echo "results: these files differ from the commit that rows would name; commit them, or give DIRTY=1 to try things out:" >&2
        echo "$changed" >&2
        exit 1
    fi
fi

# start_folder DIR: makes the folder.  What a command of another commit, or of other changes, left there is removed;
# commits of results alone do not count.
start_folder() {
    state="$(git ls-tree -r HEAD 2>/dev/null | grep -v "$(printf '\t')results/" | cksum) $(git diff HEAD -- . ':!results' 2>/dev/null | cksum)"
    git rev-parse HEAD >/dev/null 2>&1 || state=$(date +%s%N)
    [ "$state" != "$(cat "$1/commit" 2>/dev/null)" ] || return 0
    [ ! -d "$1" ] ||
        echo "results: the files in $1 were made at another commit or with other changes; they are made anew" >&2
    rm -rf "$1"
    mkdir -p "$1"
    echo "$state" >"$1/commit"
}
