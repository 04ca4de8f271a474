# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type Q8_0 -o parent.gguf -t 1 -q
printf '# deadwood plan 1\n# model parent.gguf sha256 %s\nlayer width keep\n0 64 0-31,64-95\n1 32 32-63\n2 drop\n3 64 0-63\n' "$(sha256sum <parent.gguf | cut -c-64)" >plan.tsv
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" m.gguf \
    deadwood-cut -m parent.gguf -p plan.tsv -o m.gguf -t 1 -q
