# Stored predictions, too, are written whole or not at all; the rows come behind them.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
FAULT_MAY_STAY=yes FAULT_RUNS=${FAULT_RUNS:-16} bash "$ROOT/tests/faults.sh" base.dwp deadwood-score -m m.gguf -f text.txt -c 64 --windows 2 --no-speed --store base.dwp -t 1 -q
