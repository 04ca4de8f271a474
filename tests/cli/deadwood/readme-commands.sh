# Every command that the README shows has a program and options that exist, and the tour and the tables and plots leave no
# untracked file.  The long tests run the tour.
grep -oE 'deadwood (help )?[a-z]+( [^`#|]*)?' "$ROOT/README.md" >commands
bad=0
while read -r _ name rest; do
    [ -x "$BUILD/deadwood-$name" ] || continue # words of a sentence
    [ -e "help.$name" ] || deadwood help "$name" >"help.$name"
    for word in $rest; do
        case $word in
        --[a-z]*) option=${word%%=*} ;;
        -[a-z]) option=$word ;;
        *) continue ;;
        esac
        grep -qE -- "(^|[ ,])$option([ ,]|\$)" "help.$name" || { echo "deadwood $name $rest: there is no $option"; bad=1; }
    done
done <commands
test "$(ls help.* | wc -l)" -ge 14
test $bad = 0

sed -n '/^## A tour/,/^```$/p' "$ROOT/README.md" | grep '^deadwood' >tour.sh
test "$(wc -l <tour.sh)" -ge 13
if git -C "$ROOT" rev-parse 2>err; then
    sed -n '/^## Tables and plots/,/^## /p' "$ROOT/README.md" | grep '^deadwood table' | cat tour.sh - |
        grep -oE -e '(-o|--plot) [^ ]+' | sed 's/.* //' | sort -u >made
    test "$(wc -l <made)" -ge 12
    printf '%s\n' rows.tsv.windows stats.h5.gram >>made # beside rows.tsv and stats.h5
    while read -r file; do git -C "$ROOT" check-ignore -q "$file" || { echo "git does not ignore the README's $file"; exit 1; }; done <made
fi
[ -n "${DW_SLOW:-}" ] || exit 0
ln -s "$ROOT/experiments" experiments
bash -eu tour.sh
