# --per-layer says which models have no gate and therefore no table.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood score -m m.gguf -f text.txt -c 64 --windows 2 --no-speed --per-layer -t 1 2>err
grep -q "'m.gguf' is not gated: --per-layer prints nothing of it" err
