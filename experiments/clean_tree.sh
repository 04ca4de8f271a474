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
