# A file that is no table of rows is called that, and not searched for columns.
refused() { # refused FILE
    status=0
    deadwood-table "$1" >out 2>err || status=$?
    test "$status" = 1
    test "$(wc -l <err)" = 1
    test ! -s out
    grep -qF "'$1' is no table of rows: its first line has no tabs between names of columns; give rows.tsv" err
}
refused "$ROOT/README.md"
refused "$ROOT/LICENSE"
printf 'model,ppl\na,1\n' >rows.csv
refused rows.csv
printf 'ppl\n1\n2\n' >one.tsv # one column is a table
test "$(deadwood-table one.tsv | grep -c '[12]')" = 2
printf 'model\ttext\tppl\n' >header.tsv
deadwood-table header.tsv 2>err && exit 1
grep -qF "'header.tsv': there are no rows" err
deadwood-table one.tsv --columns foo 2>err && exit 1 # 'ppl' is no misspelling of it
grep -qF "there is no column 'foo'; the header line" err
