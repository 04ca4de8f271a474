# A program that is killed while it writes leaves nothing either: its output has no name before it is complete.
perl -e 'sysopen(F, ".", 020200002, 0600) or exit 1' || { echo "this file system has no files without a name" >&2; exit 77; }
deadwood-synth --shape base --type F32 -o m.gguf -t 1 -q &
writes() { ls -l /proc/$1/fd 2>/dev/null | grep -E '/#[0-9]+ \(deleted\)|m\.gguf\..*\.part$' >writing; }
for i in $(seq 300); do
    writes $! && break
    sleep 0.02
done
kill -KILL $!
status=0
wait $! || status=$?
test -s writing
test "$status" = 137
test "$(ls)" = writing
