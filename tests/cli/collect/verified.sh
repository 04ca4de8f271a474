# One bit of the new statistics is stored wrong: collect finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
bash "$ROOT/tests/flipped.sh" s.h5 1 deadwood-collect -m m.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q
