# One bit of the new file is stored wrong: requant finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
requant=(deadwood-requant -m m.gguf -o new.gguf --type Q8_0 -t 1 -q)
bash "$ROOT/tests/flipped.sh" new.gguf 1 "${requant[@]}"
"${requant[@]}"
test "$(head -c 4 new.gguf)" = GGUF
