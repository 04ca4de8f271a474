# One bit of the new file is stored wrong: convert and synth find it before the rename, and the old file stays.
bash "$ROOT/tests/flipped.sh" new.gguf GGUF deadwood-convert "$ROOT/experiments/mini" -o new.gguf -t 1 -q
bash "$ROOT/tests/flipped.sh" new.gguf GGUF deadwood-synth --shape tiny-llama --type F32 -o new.gguf -t 1 -q
