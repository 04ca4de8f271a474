# Whatever the limit on memory, train ends: with the model, or with one line.
[ -z "${SAN:-}" ] || { echo "sanitizers need more address space than a limit leaves" >&2; exit 77; }
deadwood-synth --shape tiny-qwen2 --type Q8_0 --gate --group 32 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood-trace -m m.gguf -f text.txt -c 32 --tokens 128 -o t.h5 -t 1 -q
for kib in 90000 130000 200000 300000 500000; do
    for threads in 1 2; do
        rm -f p.gguf
        rc=0
        (ulimit -v $kib && timeout -s KILL 20 deadwood-train -m m.gguf -x t.h5 -o p.gguf --rank 16 --epochs 1 -t $threads -q) >out 2>err || rc=$?
        [ $rc = 0 ] && [ -s p.gguf ] && continue
        [ $rc = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -q '^deadwood-train: ' err && [ ! -e p.gguf ] && continue
        echo "$kib KiB, $threads threads: exit status $rc"
        cat err
        exit 1
    done
done
(ulimit -v 200000 && deadwood-train -m m.gguf -x t.h5 -o p.gguf --rank 16 --epochs 1 -t 2 -q) 2>err && exit 1
grep -q 'out of memory: training .* fewer' err
