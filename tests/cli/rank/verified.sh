# One bit of the new plan is stored wrong: rank finds it before the rename, and the old plan stays.
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
bash "$ROOT/tests/flipped.sh" plan.tsv 1 deadwood-rank -m m.gguf -o plan.tsv --metric weight --rate 0.25 -t 1 -q
