# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type BF16 -o m.gguf -t 1 -q
deadwood-rank -m m.gguf --metric weight --rate 0.5 -o plan.tsv -t 1 -q
deadwood-cut -m m.gguf -p plan.tsv -o small.gguf -t 1 -q
head -c 3000 "$ROOT"/README.md >text.txt
FAULT_RUNS=${FAULT_RUNS:-30} bash "$ROOT/tests/faults.sh" healed.gguf \
    deadwood-heal -m small.gguf -T m.gguf -f text.txt -o healed.gguf -c 16 --held-out 2 --batch 2 --tokens 64 --checkpoint-minutes 0 -t 1 -q
