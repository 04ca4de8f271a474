# The demo heals the cut of a 16-bit model, and leaves that out aloud when it is asked to.
[ -n "${DW_SLOW:-}" ] || { echo "takes a minute; make test-slow runs it" >&2; exit 77; }
[ -z "${SAN:-}" ] || { echo "the demo runs all programs, which takes too long under sanitizers" >&2; exit 77; }
command -v gnuplot pkg-config >/dev/null || { echo "gnuplot or pkg-config is not installed" >&2; exit 77; }
deadwood convert "$ROOT/experiments/mini" -o m.gguf -q
mkdir -p texts/calib texts/eval
cp "$ROOT"/experiments/texts/calib/english-1.txt texts/calib
cp "$ROOT"/experiments/texts/eval/english.txt texts/eval
demo=(env DEMO_BUILD="$BUILD" QUICK=1 TEXTS="$PWD/texts" OUT="$PWD/out" MODEL="$PWD/m.gguf" sh "$ROOT/experiments/demo.sh")
"${demo[@]}" >first 2>&1 || { tail -n 20 first; exit 1; }
if grep -n '^(failed' first; then exit 1; fi
grep -q '^\$ deadwood heal .*activation-0.3.gguf .* --minutes 0.02 ' first
grep -q '^| healed-0.3.gguf ' out/table.md
grep -q '^| 5 cut 30 %, then learn from the original | .* | x [0-9]' out/story.md
HEAL=0 "${demo[@]}" >second 2>&1 || { tail -n 20 second; exit 1; }
grep -q '^(skipped: HEAL=0)' second
grep -q '^| 5 cut 30 %, then learn from the original | .* | not made ' out/story.md
