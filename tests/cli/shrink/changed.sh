# The folder of other arguments is told, what is the same in it is used, and the result is that of a new folder; --clean
# leaves rows and plans.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
head -c 2000 "$ROOT/experiments/texts/calib/english-1.txt" >a.txt
head -c 2000 "$ROOT/experiments/texts/calib/english-2.txt" >b.txt
args=(tiny.gguf -f a.txt b.txt -c 64 --mixture Q8_0)
deadwood-shrink "${args[@]}" --rate 0.5 -o small.gguf >table 2>err
if grep -q 'with other arguments' err; then exit 1; fi
deadwood-shrink "${args[@]}" --rate 0.5 -o small.gguf >table 2>err
if grep -q 'with other arguments' err; then exit 1; fi
deadwood-shrink "${args[@]}" --rate 0.25 -o small.gguf >table 2>err
test "$(grep -c "'small.gguf.shrink' was made with other arguments: the steps that are the same are not run again" err)" = 1
if grep -q '^deadwood collect -m tiny.gguf' err; then exit 1; fi # the statistics are of both
if grep -q 'rate=0.5' small.gguf.shrink/rows.tsv; then exit 1; fi
deadwood-shrink "${args[@]}" --rate 0.25 -o fresh.gguf --clean >fresh 2>err
cmp small.gguf fresh.gguf
grep -q "removed from 'fresh.gguf.shrink'" err
test -z "$(find fresh.gguf.shrink -name '*.gguf' -o -name '*.h5' -o -name '*.gram' -o -name '*.base')"
test -s fresh.gguf.shrink/rows.tsv
test -s fresh.gguf.shrink/shrink.grid
ls fresh.gguf.shrink/plan-*.tsv
