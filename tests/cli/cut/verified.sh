# One bit of the new file is stored wrong: cut finds it before the rename, and the old file stays.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
printf '# deadwood plan 1\nlayer width keep\n0 64 0-31,64-95\n1 64 0-63\n2 64 0-63\n3 64 0-63\n' >plan.tsv
echo old >small.gguf
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=1 deadwood-cut -m m.gguf -p plan.tsv -o small.gguf -t 1 -q 2>err || status=$?
test "$status" = 1
test "$(cat small.gguf)" = old
grep -q "small.gguf' was not written, because the new file fails its check" err
! grep -q /proc err
! compgen -G '*.part'
deadwood-cut -m m.gguf -p plan.tsv -o small.gguf -t 1 -q
test "$(head -c 4 small.gguf)" = GGUF
