# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
FAULT_RUNS=${FAULT_RUNS:-30} bash "$ROOT/tests/faults.sh" s.h5 deadwood-collect -m m.gguf -f text.txt -c 64 --windows 4 --text-windows 2 -o s.h5 -t 1 -q
