# SIGINT at any file operation of cut --hf leaves no half-written file or folder.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
deadwood-convert "$ROOT/experiments/mini" -o m.gguf -q
deadwood-rank -m m.gguf --metric weight --rate 0.5 -o m.plan -q
cut=(deadwood-cut -m m.gguf -p m.plan -o small.gguf --hf folder --checkpoint "$ROOT/experiments/mini" -t 1 -q)
LD_PRELOAD=$BUILD/faults.so FAULT_COUNT=count "${cut[@]}"
before=$(ls folder | wc -l)
test "$before" -ge 3
n=0
for place in $(sed -n 's/^io //p' count); do
    rm -rf folder small.gguf
    status=0
    LD_PRELOAD=$BUILD/faults.so FAULT_INT=$place "${cut[@]}" 2>err || status=$?
    test "$status" = 130
    test ! -s err
    if compgen -G '*.part' || { [ -e folder ] && [ "$(ls folder | wc -l)" != "$before" ]; }; then
        echo "place $place left what stands above"
        exit 1
    fi
    n=$((n + 1))
done
test "$n" -gt 10
