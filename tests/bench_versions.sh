#!/bin/bash
# bench_versions.sh - two builds' speed on one model, in turn: is the new one slower?
#
#   tests/bench_versions.sh OLD_TREE NEW_TREE MODEL [PAIRS [PREFILL [DECODE [THREADS]]]]
#
# Both trees are built (make).  Of each a process holds the model (bench_turns.c, linked with that tree's engine), and each of
# PAIRS (21) pairs times either once, the order changing from pair to pair: PREFILL (512) tokens in one pass, then DECODE (64)
# tokens one by one.  The two times of a pair are seconds apart, so that a shared machine disturbs both alike.  Prints the
# median of the ratios new / old in tokens a second and the 90 % interval of that median (order statistics of the pairs).
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
tree[0]=$1 tree[1]=$2 model=$3 pairs=${4:-21} prefill=${5:-512} decode=${6:-64} threads=${7:-0}
here=$(dirname "$0") scratch=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$scratch"' EXIT

for k in 0 1; do
    t=${tree[$k]}
    cc -std=gnu11 -O2 -D_GNU_SOURCE -I"$t/engine" "$here/bench_turns.c" "$t/build/libengine.a" \
        $(pkg-config --libs libpcre2-8 jansson hdf5) -lm -lpthread -o "$scratch/turns$k"
    mkfifo "$scratch/ask$k" "$scratch/answer$k"
done

# Where a process finds its pages decides a few percent of its speed: both are started anew every 10 pairs.
start() {
    for k in 0 1; do
        "$scratch/turns$k" "$model" "$threads" <"$scratch/ask$k" >"$scratch/answer$k" &
        exec {fd}>"$scratch/ask$k" && ask[$k]=$fd
        exec {fd}<"$scratch/answer$k" && answer[$k]=$fd
    done
}

stop() {
    for k in 0 1; do exec {ask[$k]}>&- {answer[$k]}<&-; done
    wait
}

seconds() { # BUILD WORK N: into $s
    echo "$2 $3" >&"${ask[$1]}"
    read -r s <&"${answer[$1]}" || { echo "bench_versions: ${tree[$1]}: no answer" >&2; exit 1; }
}

turn() { # WORK N FILE: a pair, appended to FILE
    [ "$2" -gt 0 ] || return 0
    local first=$((i % 2)) a
    seconds $first "$1" "$2" && a=$s
    seconds $((1 - first)) "$1" "$2"
    if [ $first = 0 ]; then echo "$a $s"; else echo "$s $a"; fi >>"$3"
}

for ((i = 0; i < pairs; i++)); do
    if ((i % 10 == 0)); then
        [ $i = 0 ] || stop
        start
        turn prefill "$prefill" /dev/null # loads the pages
        turn decode "$decode" /dev/null
    fi
    turn prefill "$prefill" "$scratch/prefill"
    turn decode "$decode" "$scratch/decode"
done
stop
# The median of n pairs lies between the k-th smallest and the k-th largest with 90 %: k from the binomial distribution.
for work in prefill decode; do
    [ -s "$scratch/$work" ] || continue
    awk -v model="$(basename "$model")" -v what=$work -v n_tokens="${!work}" '
    function sorted(x, n,  i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t } }
    function median(x, n) { return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2 }
    { old[NR] = n_tokens / $1; new[NR] = n_tokens / $2; ratio[NR] = $1 / $2 }
    END {
        n = NR; sorted(old, n); sorted(new, n); sorted(ratio, n)
        p = c = 2 ^ -n
        while (c <= 0.05) { k++; p *= (n - k + 1) / k; c += p }
        if (k < 1) k = 1
        printf "%-20s %-8s new / old %.3f [%.3f, %.3f]  (%d pairs; old %.2f, new %.2f tok/s)\n", model, what, median(ratio, n), ratio[k], ratio[n + 1 - k], n, median(old, n), median(new, n)
    }' "$scratch/$work"
done
