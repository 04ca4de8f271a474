# The demo of a Q4_K_M file, of a Q4_0 file, and of an MLX folder beside its 16-bit form: every step succeeds.
[ -n "${DW_SLOW:-}" ] || { echo "takes a minute; make test-slow runs it" >&2; exit 77; }
[ -z "${SAN:-}" ] || { echo "the demo runs all programs, which takes too long under sanitizers" >&2; exit 77; }
command -v gnuplot pkg-config >/dev/null || { echo "gnuplot or pkg-config is not installed" >&2; exit 77; }
perl "$ROOT/tests/mlx_folder.pl" mlx "$ROOT/experiments/mini" 384
deadwood convert mlx --type f16 -o mlx16.gguf -q
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
deadwood requant -m mini.gguf --mixture Q4_K_M -o q4_k_m.gguf -q
deadwood requant -m mini.gguf --mixture Q4_0 -o q4_0.gguf -q
mkdir -p texts/calib texts/eval
cp "$ROOT"/experiments/texts/calib/english-1.txt texts/calib
cp "$ROOT"/experiments/texts/eval/english.txt texts/eval
succeeds() { # NAME ASSIGNMENT...
    local name=$1
    shift
    env DEMO_BUILD="$BUILD" QUICK=1 TEXTS="$PWD/texts" OUT="$PWD/$name" "$@" sh "$ROOT/experiments/demo.sh" >$name.log 2>&1 || { tail -n 20 $name.log; exit 1; }
    if grep -n '^(failed' $name.log; then exit 1; fi
    for model in predicted activation-0.3 single-0.2 q2_k q4_k_m q4-q2; do
        grep -q "^| $model.gguf " $name/table.md || { echo "$name: no row of $model"; exit 1; }
    done
}
succeeds k MODEL="$PWD/q4_k_m.gguf"
grep -q 'cuts groups of 256 instead of 64: Q4_K has blocks of 256' k.log
succeeds simple MODEL="$PWD/q4_0.gguf"
succeeds sourced MODEL="$PWD/mlx" SOURCE="$PWD/mlx16.gguf"
grep -q '^| q2.gguf ' sourced/table.md
