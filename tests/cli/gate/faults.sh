# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type Q8_0 -o parent.gguf -t 1 -q
for i in 1 2 3 4 5 6 7 8; do echo "the river bends and the tree grows, $i times over a year of light"; done >text.txt
deadwood-collect -m parent.gguf -f text.txt -c 32 --windows 2 -o stats.h5 -t 1 -q
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" m.gguf \
    deadwood-gate -m parent.gguf -s stats.h5 -o m.gguf --rule cats --activity 0.3 -t 1 -q
