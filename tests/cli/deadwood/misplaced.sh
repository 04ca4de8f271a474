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
