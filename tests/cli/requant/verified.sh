# One bit of the new file is stored wrong: requant finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
echo old >new.gguf
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-requant -m m.gguf -o new.gguf --type Q8_0 -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat new.gguf)" = old
grep -q "new.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.dw*.part'
deadwood-requant -m m.gguf -o new.gguf --type Q8_0 -t 1 -q
test "$(head -c 4 new.gguf)" = GGUF
