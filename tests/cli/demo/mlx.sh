# The demo of an MLX folder in 4 bits with a width of 352: killed on the way it leaves nothing half, and the same command ends
# with all tables.  What cannot be made is left out with its reason.
[ -z "${SAN:-}" ] || { echo "the demo runs all programs, which takes too long under sanitizers" >&2; exit 77; }
command -v gnuplot pkg-config >/dev/null || { echo "gnuplot or pkg-config is not installed" >&2; exit 77; }
perl "$ROOT/tests/mlx_folder.pl" mlx "$ROOT/experiments/mini" 352
mkdir -p texts/calib texts/eval
cp "$ROOT"/experiments/texts/calib/english-1.txt "$ROOT"/experiments/texts/calib/code-1.txt texts/calib
cp "$ROOT"/experiments/texts/eval/english.txt texts/eval
demo=(env DEMO_BUILD="$BUILD" QUICK=1 TEXTS="$PWD/texts" OUT="$PWD/out" MODEL="$PWD/mlx" sh "$ROOT/experiments/demo.sh")

setsid "${demo[@]}" >first 2>&1 & # a process group of its own
for _ in $(seq 600); do
    [ -e out/gated-0.8.gguf ] && break
    sleep 0.05
done
kill -KILL -- -$!
wait $! || true
sleep 0.2
for file in out/*.gguf; do deadwood inspect "$file" >shown; done

"${demo[@]}" >second 2>&1 || { tail -n 20 second; exit 1; }
grep -q '^(.*/dense.gguf is there)' second
grep -q "^The FFN's matrices are Q4_1; 2 layers of at most 352 neurons" second
grep -q 'cuts groups of 32 instead of 64: 64 does not divide the width 352' second
grep -q 'rows of 352 or 128 values are no whole number of groups' second
grep -q 'the same model in 16 bits, avoids that' second
grep -q '^(skipped: a model learns in 16 or 32 bits, and the matrices are Q4_1' second
if grep -n '^(failed' second; then exit 1; fi
for model in gated-0.9 predicted activation-0.2 random-0.3 single-0.2 q2_k q4_k_m; do
    grep -q "^| $model.gguf " out/table.md || { echo "no row of $model"; cat out/table.md; exit 1; }
done
grep -q '^| 4 two bits after four | .* | not made ' out/story.md
grep -q '</svg>' out/plot.svg
# One ratio of speeds, in both tables.
gain=$(awk -F ' *[|] *' '/decoding, dense = 1/ {for (i = 1; i <= NF; i++) if ($i == "decoding, dense = 1") at = i} $2 == "activation-0.2.gguf" {print $at + 0}' out/table.md)
story=$(awk -F ' *[|] *' '$2 == "3 cut 20 % in groups" {sub(/x /, "", $6); print $6 + 0}' out/story.md)
test -n "$gain"
test "$gain" = "$story"
# All was expected to take some time, which is said again at the end.
grep -q '^It will take about [0-9]* minutes*, [0-9]* MB of disk in ' second
grep -q '^It took [0-9.]* minutes ([0-9.]* were expected) and [0-9]* MB' second
