# One bit of the new file is stored wrong: gate finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood-collect -m m.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q
for rule in cats static; do
    echo old >new.gguf
    status=0
    LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-gate -m m.gguf -s s.h5 -o new.gguf --rule $rule --activity 0.5 -t 1 -q 2>err || status=$?
    test "$status" = 1
    test "$(cat new.gguf)" = old
    grep -q "new.gguf' was not written, because the new file fails its check" err
    ! grep -q /proc err
    ! compgen -G '*.dw*.part'
done
deadwood-gate -m m.gguf -s s.h5 -o new.gguf --rule cats --activity 0.5 -t 1 -q
test "$(head -c 4 new.gguf)" = GGUF
