# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
command -v deadwood-requant >/dev/null || { echo "there is no deadwood-requant" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type BF16 -o 16.gguf -q
printf '*ffn* affine2\n/attn/ Q4_0\n' > r.recipe
FAULT_RUNS=${FAULT_RUNS:-24} bash "$ROOT/tests/faults.sh" m.gguf deadwood-requant -m 16.gguf -o m.gguf --recipe r.recipe -t 1 -q
