# With --heal-minutes and --mixture the cut model, its control and the uncut model learn, rounded to their mixtures; rows
# say tokens and minutes, and the table shows them.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
for i in 1 2 3; do head -c 6000 "$ROOT/experiments/texts/calib/english-$i.txt" >$i.txt; done
shrink=(deadwood-shrink tiny.gguf -f 1.txt 2.txt 3.txt -c 32 --rate 0.5 --heal-minutes 0.01)
"${shrink[@]}" --mixture Q8_0 -o small.gguf >table 2>err
test "$(grep -c 'heal -m .* -T tiny.gguf -f .*1.txt.* --minutes 0.01 --as .* -s ' err)" = 3
grep -q 'minutes trained' table
deadwood-inspect small.gguf --lineage | cut -d' ' -f2 | tr '\n' ' ' >steps
grep -q 'cut heal $' steps
# A few steps may all be worse: then none counts, and that is told.
awk -F'\t' '/^#/ {next} $1 == "date" {for (n = 1; n <= NF; n++) at[$n] = n; next}
    $at["model"] ~ /small|learned/ {tokens = $at["tokens_trained"]
        print $at["model"], (tokens >= 64 && $at["minutes_trained"] > 0 || told && tokens == 0)}' \
    told="$(grep -c 'weights of before' err)" small.gguf.shrink/rows.tsv | sed 's/-[0-9a-f]*\.gguf//' | sort -u >trained
printf '%s\n' 'learned 1' 'random_small 1' 'small 1' | cmp - trained
"${shrink[@]}" -o plain.gguf -q >table # without a mixture the healed model is the result
deadwood-inspect plain.gguf --lineage | tail -n 1 | grep -q '^deadwood heal'
deadwood-synth --shape tiny-qwen2 --type Q8_0 -o q8.gguf -q
if deadwood-shrink q8.gguf -f 1.txt 2.txt -c 32 --rate 0.5 --heal-minutes 1 -o no.gguf 2>err; then exit 1; fi
grep -q 'is Q8_0, and --heal-minutes needs 16 or 32 bits' err
