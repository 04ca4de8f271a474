# One bit of the new statistics is stored wrong: collect finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
echo old >s.h5
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-collect -m m.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat s.h5)" = old
grep -q "s.h5' was not written, because the new file fails its check" err
