# The row of a cut of a cut model tells what both removed and were to remove, and what else the last one did.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 --windows 4 --gram down+o -o s.h5 -t 1 -q
deadwood rank -m m.gguf -s s.h5 --metric energy --rate 0.25 --heads 0.5 --drop-layers 1 --group 32 -o 1.tsv -q
deadwood cut -m m.gguf -p 1.tsv -s s.h5 --repair bias -o 1.gguf -q
deadwood collect -m 1.gguf -f text.txt -c 64 --windows 4 -o s1.h5 -t 1 -q
deadwood rank -m 1.gguf -s s1.h5 --metric weight --rate 0.5 --drop-layers 1 --group 1 --multiple 1 -o 2.tsv -q
deadwood cut -m 1.gguf -p 2.tsv -o 2.gguf -q
deadwood score -m 1.gguf 2.gguf -f text.txt -c 64 --windows 2 --no-speed -o rows.tsv -t 1 -q >/dev/null
deadwood table rows.tsv --format tsv --columns model,metric,rate,rate_reached,layers_dropped,kv_heads,repair >table.tsv
cat table.tsv >&2
set -- $(sed -n 2p table.tsv | cut -f4) $(sed -n 3p table.tsv | cut -f4)
grep -q "^1.gguf	energy	0.25	$1	1 of 4	3 of 6	bias$" table.tsv
grep -q "^2.gguf	weight	0.625	$2	2 of 4	2 of 6	-$" table.tsv
awk -v a="$1" -v b="$2" 'BEGIN {exit !(a > 0.2 && a < 0.3 && b > 1 - (1 - a) * 0.55 && b < 1 - (1 - a) * 0.45)}'
# the heads of 16 values that the model still has
deadwood inspect 2.gguf --tensors | awk '$1 ~ /attn_k.weight/ {split($3, rows, "x"); n += rows[1]} END {exit n != 2 * 16}'
