# A program that is told to end while it writes leaves nothing.
deadwood-synth --shape base --type F32 -o m.gguf -t 1 -q &
writes() { ls -l /proc/$1/fd 2>/dev/null | grep -E '/#[0-9]+ \(deleted\)|m\.gguf\..*\.part$' >writing; }
for i in $(seq 300); do
    writes $! && break
    sleep 0.02
done
kill -TERM $!
status=0
wait $! || status=$?
test -s writing
test "$status" = 143
test "$(ls)" = writing
