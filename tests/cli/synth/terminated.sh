# A program that is told to end while it writes leaves nothing: neither a file without a name, nor one with a temporary
# name where the file system has no others.
writes() { ls -l /proc/$1/fd 2>/dev/null | grep -E "$2" >writing; }
check() { # how the file that is being written looks, and what the program runs with
    env $2 deadwood-synth --shape base --type F32 -o m.gguf -t 1 -q &
    for i in $(seq 300); do
        writes $! "$1" && break
        sleep 0.02
    done
    kill -TERM $!
    status=0
    wait $! || status=$?
    test -s writing
    test "$status" = 143
    test "$(ls)" = writing
}
check '/#[0-9]+ \(deleted\)|m\.gguf\..*\.part$' ''
[ -n "${SAN:-}" ] || # no preloading under sanitizers
    check 'm\.gguf\.dw[0-9a-f]{16}\.part$' "FAULT_NO_TMPFILE=1 LD_PRELOAD=$(dirname "$(command -v deadwood-synth)")/faults.so"
