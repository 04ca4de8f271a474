# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" m.gguf deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
