# shrink is killed at up to ten moments, told to end once, and then goes on to the same bytes; nothing half-written is left.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
head -c 2000 "$ROOT/experiments/texts/calib/english-1.txt" >a.txt
head -c 2000 "$ROOT/experiments/texts/calib/english-2.txt" >b.txt
args=(tiny.gguf -f a.txt b.txt -c 64 --rate 0.5 --mixture Q4_0 -q)
deadwood-shrink "${args[@]}" -o whole.gguf >table
n_killed=0
for i in 1 2 3 4 5 6 7 8 9 10; do
    deadwood-shrink "${args[@]}" -o small.gguf >log 2>&1 &
    sleep 0.$((i / 2))$((i % 2 * 5))
    if kill -9 $! 2>log; then n_killed=$((n_killed + 1)); fi
    wait $! 2>log || true
done
test $n_killed -ge 3 # a fast machine is done before the last
deadwood-shrink "${args[@]}" -o small.gguf >again
cut -d'|' -f2-15 table | grep gguf | sed 's/-[0-9a-f]*.gguf//' >one
cut -d'|' -f2-15 again | grep gguf | sed 's/-[0-9a-f]*.gguf//' | cmp one -
cmp small.gguf.shrink/small-*.gguf whole.gguf.shrink/small-*.gguf
cmp small.gguf.shrink/small-*.gguf small.gguf
test -z "$(find . -name '*.part')"

rm -r small.gguf.shrink small.gguf
env --default-signal=INT deadwood-shrink "${args[@]}" -o small.gguf >log 2>&1 &
for i in $(seq 500); do [ ! -d small.gguf.shrink/log ] || break; sleep 0.01; done
kill -INT $!
status=0
wait $! || status=$?
test "$status" = 130
test ! -e small.gguf
test -z "$(find . -name '*.part')"
