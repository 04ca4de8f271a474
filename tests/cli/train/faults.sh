# Each allocation and each file operation fails in turn: an error line, no partial file.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type Q8_0 --gate --group 32 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood-trace -m m.gguf -f text.txt -c 32 --tokens 128 -o t.h5 -t 1 -q
export OPENBLAS_NUM_THREADS=1 OPENBLAS_CORETYPE=Prescott # else train starts itself again, without the faults
FAULT_RUNS=${FAULT_RUNS:-30} bash "$ROOT/tests/faults.sh" p.gguf deadwood-train -m m.gguf -x t.h5 -o p.gguf --rank 16 --epochs 1 -t 1 -q
