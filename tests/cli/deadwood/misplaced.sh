# Files in the wrong place or given twice are refused, and the message says what is wrong.
refuses() { # STATUS WORDS COMMAND...
    local wanted=$1 words=$2 status=0
    shift 2
    "$@" >out 2>&1 || status=$?
    test $status = "$wanted" && grep -qF -- "$words" out || { cat out; echo "status $status: $*"; exit 1; }
}
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
cp text.txt copy.txt
refuses 1 "'text.txt' and 'copy.txt' are the same text" deadwood-score -m m.gguf -f text.txt copy.txt -c 64 --no-speed
refuses 1 "'text.txt' is no model (GGUF), statistics, traces, plan or rows" deadwood-inspect text.txt
deadwood-score -q -m m.gguf -f text.txt -c 64 --windows 1 --no-speed --store base >out
refuses 1 'stored predictions (score --store), which score --base reads' deadwood-inspect base
deadwood-collect -q -m m.gguf -f text.txt -c 64 --windows 1 --gram down -o stats.h5
refuses 1 'Gram matrices (collect --gram)' deadwood-inspect stats.h5.gram
refuses 1 "there is no folder 'nowhere'" deadwood-inspect m.gguf --verify --inputs nowhere
refuses 1 "'stats.h5': the statistics have no gradients" \
    deadwood-rank -m m.gguf -s stats.h5 --metric taylor --rate 0.5 -o made
