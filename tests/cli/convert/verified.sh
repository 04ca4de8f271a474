# One bit of the new file is stored wrong: convert and synth find it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
echo old >new.gguf
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-convert "$ROOT/experiments/mini" -o new.gguf -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat new.gguf)" = old
grep -q "new.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.dw*.part'
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-synth --shape tiny-llama --type F32 -o new.gguf -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat new.gguf)" = old
grep -q "new.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.dw*.part'
