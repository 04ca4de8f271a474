# A row holds a file's name as valid text, so that its JSON and its table can be read.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 2000 "$ROOT/README.md" >text.txt
cp m.gguf $'m\xe4.gguf' # Latin-1
long=$(printf '\xe6\xa8\xa1%.0s' $(seq 60)).gguf # longer than a cell, whose end is inside of a character
cp m.gguf "$long"
deadwood score -m $'m\xe4.gguf' "$long" -f text.txt -c 64 --windows 1 --no-speed -t 1 -q --json -o rows.tsv >out
test "$(wc -l <out)" = 2
sed -n 1p out | grep -q '"model":"m?.gguf"'
sed -n 2p out | grep -q '"model":"\\u6A21'
deadwood table rows.tsv | grep -q '^| m?.gguf '
