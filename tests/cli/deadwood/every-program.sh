# Every program has help, a man page, a version and a summary, and answers wrong usage with one line and status 2.
for program in "$BUILD"/deadwood "$BUILD"/deadwood-*; do
    case $program in *.*) continue ;; esac
    name=$(basename "$program")
    "$program" --help >help 2>err
    "$program" --help-man >man 2>>err
    "$program" --summary >summary 2>>err
    test ! -s err
    test "$(head -c 7 help)" = "usage: "
    test "$(head -c 4 man)" = ".TH "
    test "$("$program" --version)" = "$name 0.1"
    if [ "$name" != deadwood ]; then
        test "$(wc -l <summary)" = 1
        deadwood | grep -q "^  ${name#deadwood-}  *$(cat summary)"
    fi
    if awk 'length > 120 { print FILENAME ": " $0; n++ } END { exit !n }' help; then exit 1; fi
    status=0
    "$program" --no-such-option >out 2>err || status=$?
    test "$status" = 2
    test ! -s out
    test "$(wc -l <err)" = 1
    grep -q "^$name: unknown option '--no-such-option'.*; see '$name --help'\$" err
done
# What one letter means, it means everywhere.
for letter in m o f s x c t q; do
    names=$(for program in "$BUILD"/deadwood-*; do case $program in *.*) ;; *) "$program" --help ;; esac; done |
        sed -n "s/^  -$letter, \(--[a-z-]*\) .*/\1/p; s/^  -$letter, \(--[a-z-]*\)\$/\1/p" | sort -u)
    test "$(wc -l <<<"$names")" = 1 || { echo "-$letter is" $names; exit 1; }
done
