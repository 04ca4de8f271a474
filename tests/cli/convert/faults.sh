# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
command -v deadwood-convert >/dev/null || { echo "there is no deadwood-convert" >&2; exit 77; }
FAULT_RUNS=${FAULT_RUNS:-24} bash "$ROOT/tests/faults.sh" m.gguf deadwood-convert "$ROOT/experiments/mini" -o m.gguf --type q8_0 -t 1 -q
