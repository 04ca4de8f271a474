# A text that holds another trains with what the other holds out: heal says so, and not of texts that share nothing.
deadwood-synth --shape tiny-qwen2 --type BF16 -o m.gguf -t 1 -q
deadwood-rank -m m.gguf --metric weight --rate 0.5 -o plan.tsv -t 1 -q
deadwood-cut -m m.gguf -p plan.tsv -o small.gguf -t 1 -q
head -c 6000 "$ROOT"/README.md >part.txt
head -c 12000 "$ROOT"/README.md >whole.txt
tail -c 6000 "$ROOT"/README.md >other.txt
heal() { deadwood-heal -m small.gguf -T m.gguf -f "$@" -o healed.gguf -c 128 --held-out 2 --batch 1 --tokens 128 -t 1 2>&1; }
heal part.txt whole.txt >said.txt || { cat said.txt >&2; exit 1; }
grep -q "the end of 'part.txt' is held out, and 'whole.txt' trains with [0-9]* tokens of it; give each text once" said.txt || { cat said.txt >&2; exit 1; }
heal part.txt other.txt >said.txt || { cat said.txt >&2; exit 1; }
if grep "is held out, and" said.txt >&2; then exit 1; fi
