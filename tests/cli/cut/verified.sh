# One bit of the new file is stored wrong: cut finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
printf '# deadwood plan 1\nlayer width keep\n0 64 0-31,64-95\n1 64 0-63\n2 64 0-63\n3 64 0-63\n' >plan.tsv
cut=(deadwood-cut -m m.gguf -p plan.tsv -o small.gguf -t 1 -q)
bash "$ROOT/tests/flipped.sh" small.gguf 1 "${cut[@]}"
"${cut[@]}"
test "$(head -c 4 small.gguf)" = GGUF
