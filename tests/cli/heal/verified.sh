# One bit of the new file is stored wrong: heal finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-qwen2 --type BF16 -o m.gguf -t 1 -q
head -c 3000 "$ROOT"/README.md >text.txt
heal=(deadwood-heal -m m.gguf -T m.gguf -f text.txt -o new.gguf -c 16 --held-out 2 --batch 2 --tokens 64 -t 1 -q)
bash "$ROOT/tests/flipped.sh" new.gguf 1 "${heal[@]}"
"${heal[@]}"
test "$(head -c 4 new.gguf)" = GGUF
