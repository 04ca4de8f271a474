# Wrong options are refused before upstream's libraries are opened.
export DW_STOCK=$PWD # holds none
refuses() {
    words=$1
    shift
    if deadwood versus "$@" >out 2>&1; then exit 1; else test $? = 2; fi
    grep -q -e "$words" out || { cat out; exit 1; }
}
echo >m.gguf
refuses '-o and --imatrix belong to --quantize' -m m.gguf --ppl -o table.tsv
refuses '-o and --imatrix belong to --quantize' -m m.gguf --imatrix m.gguf
refuses '--quantize compares nothing' -m m.gguf --ppl --quantize Q4_0 -o q.gguf
refuses '--quantize compares nothing' -m m.gguf --stock-model m.gguf --quantize Q4_0 -o q.gguf
refuses '--stock-model needs --ppl' -m m.gguf --stock-model m.gguf
if deadwood versus --fetch gone/stock >out 2>&1; then exit 1; fi # before anything is downloaded
grep -qF "cannot create 'gone/stock': there is no folder 'gone'; make it first" out
test ! -e gone
refuses "none of decode, prefill, perplexity" -m m.gguf --what speed
