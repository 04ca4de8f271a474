# Each allocation and each file operation fails in turn: an error line, no partial file; rows of a finished model may stay.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
command -v deadwood-score >/dev/null || { echo "there is no deadwood-score" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
export SOURCE_DATE_EPOCH=1700000000 # the rows of two runs are the same
FAULT_MAY_STAY=yes FAULT_RUNS=${FAULT_RUNS:-24} bash "$ROOT/tests/faults.sh" rows.tsv deadwood-score -m m.gguf -f text.txt -c 64 --windows 2 --no-speed -o rows.tsv -t 1 -q
