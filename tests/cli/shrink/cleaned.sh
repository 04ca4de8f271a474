# After --clean the same command finds its result and makes nothing; a result that is gone or of other arguments is made
# again.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
head -c 2000 "$ROOT/experiments/texts/calib/english-1.txt" >a.txt
head -c 2000 "$ROOT/experiments/texts/calib/english-2.txt" >b.txt
args=(tiny.gguf -f a.txt b.txt -c 64 --mixture Q8_0 -o small.gguf)
deadwood-shrink "${args[@]}" --rate 0.5 --clean >table 2>err
cp small.gguf first.gguf

deadwood-shrink "${args[@]}" --rate 0.5 --dry-run >said 2>err
grep -q 'every step is done' err
if grep -q warning err; then exit 1; fi # what --clean removed is not missed
test ! -s said

for clean in '' --clean; do
    touch mark
    deadwood-shrink "${args[@]}" --rate 0.5 $clean >again 2>err
    test "$(grep -c "'small.gguf' is there: it is small-.* of this table; the steps .* (--clean)" err)" = 1
    if grep -q '^deadwood ' err; then exit 1; fi # no step ran
    grep -q 'every step is done' err
    if grep -q warning err; then exit 1; fi
    cmp table again
    test -z "$(find . -newer mark -name '*.gguf')"
done

rm small.gguf
deadwood-shrink "${args[@]}" --rate 0.5 >again 2>err
grep -q "small-.* was removed from 'small.gguf.shrink' (--clean), and 'small.gguf' is not that model" err
cmp small.gguf first.gguf
cmp table again

deadwood-shrink "${args[@]}" --rate 0.25 --clean -q >other
if cmp -s small.gguf first.gguf; then exit 1; fi
deadwood-shrink "${args[@]}" --rate 0.5 --clean -q >again
cmp small.gguf first.gguf
cmp table again
