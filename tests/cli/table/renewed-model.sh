# A file that was made anew is another model: --against asks which of the two is meant.
head -c 4000 "$ROOT"/README.md >text.txt
for seed in 1 2; do
    deadwood synth --shape tiny-llama --type F32 --seed $seed -o m.gguf -q
    deadwood score -m m.gguf -f text.txt -c 64 --no-speed -t 1 -q -o rows.tsv >out
done
status=0
deadwood table rows.tsv --against m.gguf 2>err >out || status=$?
test $status = 1
grep -q "rows of 'm.gguf' are of two models; give one of them by sha256: [0-9a-f]* or [0-9a-f]*" err
second=$(sed 's/.* or //' err)
deadwood table rows.tsv --against "$second" --columns model_sha256,difference --format tsv >out
test "$(grep -c "^$second.*0$" out)" = 1
test "$(grep -v "^$second" out | tail -1 | cut -f2)" != 0
