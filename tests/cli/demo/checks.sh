# What the demo cannot use is said before anything is computed, with what it needs.
command -v gnuplot pkg-config >/dev/null || { echo "gnuplot or pkg-config is not installed" >&2; exit 77; }
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
mkdir -p texts/calib texts/eval same/calib same/eval short/calib short/eval folder
cp "$ROOT"/experiments/texts/calib/english-1.txt texts/calib
cp "$ROOT"/experiments/texts/eval/english.txt texts/eval
cp texts/eval/english.txt same/calib/other-name.txt
cp texts/eval/english.txt same/eval
head -c 40 texts/eval/english.txt >short/eval/a.txt
cp texts/calib/english-1.txt short/calib
head -c 2000 m.gguf >half.gguf
refused() { # WORDS ASSIGNMENT...
    local words=$1 status=0
    shift
    env DEMO_BUILD="$BUILD" QUICK=1 MODEL="$PWD/m.gguf" TEXTS="$PWD/texts" OUT="$PWD/out" "$@" sh "$ROOT/experiments/demo.sh" >out.txt 2>err || status=$?
    [ "$status" = 1 ] && grep -qF -- "$words" err && ! grep -q 'Attempt 1: ' out.txt || { echo "exit $status, wanted '$words': $*"; cat out.txt err; exit 1; }
}
refused "there are no texts '$PWD/nothing/calib/*.txt'" TEXTS="$PWD/nothing"
refused 'TEXTS=DIR needs DIR/calib/*.txt and DIR/eval/*.txt: plain text in UTF-8, no file in both' TEXTS="$PWD/nothing"
refused "the same text stands in two files: $PWD/same/calib/other-name.txt and $PWD/same/eval/english.txt" TEXTS="$PWD/same"
refused "cannot score '$PWD/short/eval/a.txt'" TEXTS="$PWD/short"
refused "there is no '$PWD/none.gguf'" MODEL="$PWD/none.gguf"
refused "WINDOWS 'foo' is no range" WINDOWS=foo
refused "HEAL 'soon' is not a number of minutes" HEAL=soon
refused "has no config.json; MODEL is a Hugging Face or MLX folder, or a GGUF file" MODEL="$PWD/folder"
refused "cannot use '$PWD/half.gguf'" MODEL="$PWD/half.gguf"

# A folder of SOURCE is converted again when a file in it is another, and only then.
cp -r "$ROOT/experiments/mini" source
sourced() { refused "cannot score '$PWD/short/eval/a.txt'" TEXTS="$PWD/short" SOURCE="$PWD/source"; }
sourced
sourced
grep -q '/source.gguf is there)' out.txt
touch -d 2001-01-01 source/model.safetensors # older than what was made of it
sourced
if grep -q '/source.gguf is there)' out.txt; then exit 1; fi
sourced
grep -q '/source.gguf is there)' out.txt
