# One bit of the new plan is stored wrong: rank finds it before the rename, and the old plan stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
echo old >plan.tsv
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-rank -m m.gguf -o plan.tsv --metric weight --rate 0.25 -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat plan.tsv)" = old
grep -q "plan.tsv' was not written, because the new file fails its check" err
