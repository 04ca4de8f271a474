# One bit of the new file is stored wrong: train finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood-collect -m m.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q
deadwood-gate -m m.gguf -s s.h5 -o gated.gguf --rule cats --activity 0.5 -t 1 -q
deadwood-trace -m gated.gguf -f text.txt -c 64 --tokens 512 -o x.h5 -t 1 -q
export OPENBLAS_NUM_THREADS=1 # else the program starts itself again, without the faults
echo old >new.gguf
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=GGUF deadwood-train -m gated.gguf -x x.h5 -o new.gguf --epochs 1 -t 1 -q >/dev/null 2>err || status=$?
test "$status" = 1
test "$(cat new.gguf)" = old
grep -q "new.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.dw*.part'
deadwood-train -m gated.gguf -x x.h5 -o new.gguf --epochs 1 -t 1 -q >/dev/null
test "$(head -c 4 new.gguf)" = GGUF
