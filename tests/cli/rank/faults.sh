# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" plan.tsv \
    deadwood-rank -m m.gguf -o plan.tsv --metric weight --rate 0.25 --group 32 -t 1 -q
