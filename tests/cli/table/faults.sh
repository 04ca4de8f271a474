# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
printf 'model\ttext\tbase\tmetric\tseed\tppl\tppl_se\tfile_bytes\nd\ta\td\t-\t-\t9\t1\t30\nd\t*\td\t-\t-\t10\t1\t30\nr0\t*\td\trandom\t0\t20\t1\t20\nr1\t*\td\trandom\t1\t22\t1\t20\n' >rows.tsv
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" table.md deadwood-table rows.tsv -o table.md --join seed --sort ppl --where ppl!=9 -q
command -v gnuplot >/dev/null || exit 0
FAULT_RUNS=20 bash "$ROOT/tests/faults.sh" plot.svg deadwood-table rows.tsv --plot plot.svg -q
