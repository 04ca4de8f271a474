# A text that is scored and was learnt from is named, a line for each; what the demo takes of the disk is as it said.
[ -z "${SAN:-}" ] || { echo "the demo runs all programs, which takes too long under sanitizers" >&2; exit 77; }
command -v gnuplot pkg-config >/dev/null || { echo "gnuplot or pkg-config is not installed" >&2; exit 77; }
deadwood synth --shape tiny-llama --type BF16 -o m.gguf -q
mkdir -p texts/calib texts/eval
for text in one two; do
    head -c 3000 "$ROOT/experiments/texts/calib/english-1.txt" >texts/calib/$text.txt
    { cat texts/calib/$text.txt && head -c 3000 "$ROOT/experiments/texts/eval/english.txt" && echo $text; } >texts/eval/$text.txt
    echo $text >>texts/calib/$text.txt
done
env DEMO_BUILD="$BUILD" QUICK=1 HEAL=0 MODEL="$PWD/m.gguf" TEXTS="$PWD/texts" OUT="$PWD/out" sh "$ROOT/experiments/demo.sh" >log 2>&1 || { tail -n 20 log; exit 1; }
grep -q '^Caution: models were made with text that they are scored on, so their quality is too good:$' log
test "$(grep -c "^- '[a-z]*.txt' is scored, and calibration text '[a-z]*.txt' shares a run of [0-9]* tokens or more$" log)" = 2
if sed -n '/^Caution/,$p' log | grep -n ' $'; then exit 1; fi
said=$(sed -n 's/^It will take about .*, \([0-9]*\) MB of disk.*/\1/p' log) took=$(sed -n 's/^It took .* and \([0-9]*\) MB\.$/\1/p' log)
test "$said" -ge "$took" -a "$said" -le $((2 * took + 2)) || { echo "$said MB of disk were expected, $took taken"; exit 1; }
