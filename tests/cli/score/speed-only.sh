# Speed alone reads no text, and a text that is given all the same is not opened as one.
deadwood synth --shape tiny-llama --type F16 -o m.gguf -q
: >empty.txt
speed=(--speed-only --speed-prefill 8 --speed-decode 2 --speed-rounds 1)
deadwood score -m m.gguf "${speed[@]}" -f empty.txt -o rows.tsv 2>log || { cat log; exit 1; }
grep -q 'warning: --speed-only reads no text; -f is not used' log
test "$(grep -vc '^#' rows.tsv)" = 2
if grep -q empty rows.tsv; then exit 1; fi
# Options of quality are named, too.
deadwood score -m m.gguf "${speed[@]}" -c 64 --windows 2 -q >row 2>log
grep -q 'warning: --speed-only measures no quality; --ctx is not used' log
grep -q 'warning: --speed-only measures no quality; --windows is not used' log
# Speed is that of --precision if it is given, and the row says so; without quality it has no precision of quality.
for p in int8 bf16; do
    deadwood score -m m.gguf "${speed[@]}" --precision $p --json -q >row
    grep -q "\"speed_test\": *\"pp8 tg2, $p\"" row
    if grep -q '"precision": *"' row; then exit 1; fi
done
