# One bit of the new file is stored wrong: heal finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type BF16 -o m.gguf -t 1 -q
head -c 3000 "$ROOT"/README.md >text.txt
heal() { deadwood-heal -m m.gguf -T m.gguf -f text.txt -o new.gguf -c 16 --held-out 2 --batch 2 --tokens 64 -t 1 -q; }
echo old >new.gguf
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 heal 2>err || status=$?
test "$status" = 1
test "$(cat new.gguf)" = old
grep -q "new.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.dw*.part'
heal
test "$(head -c 4 new.gguf)" = GGUF
