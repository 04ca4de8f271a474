# A plan and rows of results are told apart from models by their first line.
printf '# deadwood plan 1\n# metric weight\nlayer width keep\n0 64 0-31,64-95\n1 0 drop\n' >plan.tsv
deadwood inspect plan.tsv >out
grep -q '^metric weight$' out
grep -q "^0	64	2$" out
grep -q "^1	0	drop$" out
printf '# deadwood rows, version 1: any\nmodel\tppl\na.gguf\t9\nb.gguf\t8\na.gguf\t7\n' >rows.tsv
deadwood inspect rows.tsv >out
grep -q '^rows  *3$' out
grep -q "^model	a.gguf, b.gguf$" out
status=0
deadwood inspect plan.tsv --json 2>err || status=$?
test $status = 2
test "$(wc -l <err)" = 1
