# One bit of the new file is stored wrong: gate finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood-collect -m m.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q
gate=(deadwood-gate -m m.gguf -s s.h5 -o new.gguf --activity 0.5 -t 1 -q --rule)
bash "$ROOT/tests/flipped.sh" new.gguf 1 "${gate[@]}" static
bash "$ROOT/tests/flipped.sh" new.gguf 1 "${gate[@]}" cats
"${gate[@]}" cats
test "$(head -c 4 new.gguf)" = GGUF
