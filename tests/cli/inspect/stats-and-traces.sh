# Statistics show quantiles, traces their groups and open shares; scores are told apart by their first line.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 6000 "$ROOT"/README.md >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 --windows 8 --hist-every 1 -o s.h5 -q
deadwood inspect s.h5 >out
grep -q '^text.txt	1-8	512	' out
grep -q '^layer	magnitude	p10	p50	p90	p99	p99.9$' out
test "$(grep -c '^[0-3]	\(neuron\|gate\|attn_in\|attn_mix\|ffn_in\)	' out)" = 20
awk -F '\t' '$1 ~ /^[0-3]$/ && NF == 7 { for (i = 4; i <= 7; i++) if (!($i > $(i - 1))) exit 1 }' out # quantiles ascend
deadwood gate -m m.gguf -s s.h5 -o g.gguf --rule group-max --group 32 --activity 0.5 -q
deadwood trace -m g.gguf -f text.txt -c 64 --windows 8 -o t.h5 -q
deadwood inspect t.h5 >out
grep -q '^tokens  *512, in windows of 64 without the first 0$' out
grep -q '^group  *32 neurons$' out
grep -q '^text.txt	1-8	512	' out
awk -F '\t' '$2 == 4 && NF == 3 { n++; if ($3 < 0.4 || $3 > 0.6) exit 1 } END { exit n != 4 }' out # as wanted on the same text
deadwood rank -m m.gguf --metric weight --group 32 --scores scores.tsv -q
deadwood inspect scores.tsv >out
grep -q '^rows  *16$' out
status=0
deadwood inspect t.h5 --json 2>err || status=$?
test $status = 2
