# With a standard stream closed no output file gets its number, so no message lands between the weights.
writes() { ls -l /proc/$1/fd 2>/dev/null | grep -E '/#[0-9]+ \(deleted\)|m\.gguf\..*\.part$' >writing; }
deadwood-synth --shape base --type F32 -o m.gguf -t 1 2>&- &
for i in $(seq 300); do
    writes $! && break
    sleep 0.02
done
test "$(readlink /proc/$!/fd/2)" = /dev/null
kill -KILL $!
wait $! || true
rm -f m.gguf*
# A closed stdout stays a failure.
deadwood-synth --shape tiny-llama --type F32 -o m.gguf -q
status=0
deadwood-inspect m.gguf >&- 2>err || status=$?
test "$status" = 1
grep -q 'cannot write to stdout' err
deadwood-inspect m.gguf <&- >out 2>&-
test -s out
