#!/bin/bash
# bench_versions.sh - two builds' speed on one model, in turn: is the new one slower?
#
#   tests/bench_versions.sh OLD_BUILD NEW_BUILD MODEL [PAIRS [PREFILL [DECODE]]]
#
# Each of PAIRS (21) pairs runs `score --speed-only` once in either build, the order changing from pair to pair: PREFILL (512)
# tokens in one pass, DECODE (64) tokens one by one, in a process of its own.  Prints the median of the ratios new / old and
# the 90 % interval of that median (order statistics of the pairs), with both builds' medians in tokens a second.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
old=$1 new=$2 model=$3 pairs=${4:-21} prefill=${5:-512} decode=${6:-64}
rows=$(mktemp)
trap 'rm -f "$rows"' EXIT

speed() { # BUILD: "prefill decode"
    "$1/deadwood-score" -m "$model" --speed-only --speed-rounds 1 --speed-prefill "$prefill" --speed-decode "$decode" --json -q |
        tr ',{}' '\n' | awk -F': *' '/"prefill_tok_s"/ { p = $2 } /"decode_tok_s"/ { d = $2 } END { print p + 0, d + 0 }'
}

for ((i = 0; i < pairs; i++)); do
    if ((i % 2)); then b=$(speed "$new") a=$(speed "$old"); else a=$(speed "$old") b=$(speed "$new"); fi
    echo "$a $b" >>"$rows"
done
# The median of n pairs lies between the k-th smallest and the k-th largest with 90 %: k from the binomial distribution.
awk -v model="$(basename "$model")" '
function sorted(x, n,  i, j, t) { for (i = 2; i <= n; i++) for (j = i; j > 1 && x[j] < x[j - 1]; j--) { t = x[j]; x[j] = x[j - 1]; x[j - 1] = t } }
function median(x, n) { return n % 2 ? x[(n + 1) / 2] : (x[n / 2] + x[n / 2 + 1]) / 2 }
function show(what, a, b, r, n,  k, p, c) {
    sorted(a, n); sorted(b, n); sorted(r, n)
    p = c = 2 ^ -n
    k = 0
    while (c <= 0.05) { k++; p *= (n - k + 1) / k; c += p }
    if (k < 1) k = 1
    printf "%-28s %-8s new / old %.3f [%.3f, %.3f]  (%d pairs; old %.2f, new %.2f tok/s)\n", model, what, median(r, n), r[k], r[n + 1 - k], n, median(a, n), median(b, n)
}
{ pa[NR] = $1; da[NR] = $2; pb[NR] = $3; db[NR] = $4; if ($1) pr[NR] = $3 / $1; if ($2) dr[NR] = $4 / $2 }
END { if (pr[1]) show("prefill", pa, pb, pr, NR); if (dr[1]) show("decode", da, db, dr, NR) }' "$rows"
