# A program that is told to end while it writes leaves nothing.
deadwood-synth --shape base --type F32 -o m.gguf -t 1 -q &
for i in $(seq 300); do
    compgen -G 'm.gguf.*.part' >part && break
    sleep 0.02
done
kill -TERM $!
status=0
wait $! || status=$?
test -s part
test "$status" = 143
test "$(ls)" = part
