# A model that becomes shorter while it is used ends the program with one sentence and status 1.
deadwood-synth --shape base --type F32 -o m.gguf -q
deadwood-generate -m m.gguf -p a -n 2000 --temp 0 -q >out 2>err &
for i in $(seq 600); do
    [ -s out ] && break
    sleep 0.02
done
: >m.gguf
status=0
wait $! || status=$?
cat err
test "$status" = 1
test "$(wc -l <err)" = 1
grep -q "^deadwood-generate: cannot read '.*/m.gguf': it became shorter while it was in use" err
