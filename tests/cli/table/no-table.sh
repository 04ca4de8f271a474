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

# A plan is no table, and results do not mix with tables of another kind.
refuses() {
    local words=$1 status=0
    shift
    deadwood table "$@" >out 2>err || status=$?
    test $status = 1 && grep -qF -- "$words" err || { cat err; exit 1; }
}
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
deadwood rank -m m.gguf --metric weight --rate 0.5 -o plan.tsv -q
deadwood rank -m m.gguf --metric weight --scores scores.tsv -q
printf 'model\ttext\tppl\tbase\tln_ratio\na\tt\t3\tone\t0.1\nb\tt\t4\ttwo\t0.2\n' >results.tsv
refuses "'plan.tsv' is a plan, not a table" plan.tsv
refuses "'plan.tsv' is a plan, not a table" results.tsv plan.tsv
refuses "'results.tsv' holds results of models and 'scores.tsv' another table; give them apart" scores.tsv results.tsv
deadwood table scores.tsv >out

# ln ratios of several bases stand beside their bases.
deadwood table results.tsv | grep -q '^| model *| base *|'
