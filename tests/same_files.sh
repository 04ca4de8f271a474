#!/bin/bash
# same_files.sh - makes the models of the embedded checkpoint with two builds and compares the files byte for byte.
#
#   tests/same_files.sh OLD_BUILD NEW_BUILD
#
# Both builds run the same commands: convert, collect, rank, cut, gate, requant, each with several types and rules.  A file is
# "same" when all bytes are equal; "lineage" when only the lineage's text differs; "marks" when a gated file lacks the
# marks of layers that run densely (deadwood.gate.dense) and the rest is equal; else "DIFFERENT", and the exit status is 1.
set -euo pipefail
[ $# = 2 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2; }
old=$(cd "$1" && pwd) new=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

make_all() { # BUILD FOLDER
    local PATH="$1:$PATH" t
    mkdir -p "$2" && cd "$2"
    ln -sfn "$root/experiments/mini" mini
    for t in keep f32 f16 q8_0 q4_0; do deadwood convert mini -o convert-$t.gguf --type $t -q; done
    deadwood collect -m convert-keep.gguf -f "$root"/experiments/texts/calib/*-1.txt -c 128 --windows 2 -o stats.h5 -q
    for t in activation energy wanda random; do
        deadwood rank -m convert-keep.gguf -s stats.h5 --metric $t --group 64 --rate 0.25 --seed 1 -o $t.plan -q
        deadwood cut -m convert-keep.gguf -p $t.plan -o cut-$t.gguf -q
    done
    deadwood rank -m convert-q4_0.gguf -s stats.h5 --metric energy --group 32 --rate 0.2 -o q4.plan -q 2>/dev/null || true
    deadwood rank -m convert-keep.gguf -s stats.h5 --metric energy --group 32 --rate 0.3 --multiple 32 --allocate uniform -o uniform.plan -q
    deadwood cut -m convert-keep.gguf -p uniform.plan -o cut-uniform.gguf -q
    deadwood cut -m convert-keep.gguf -p uniform.plan -o cut-q8.gguf --down-type Q8_0 -q
    for t in "cats --activity 0.3" "cats --activity 0.9" "group-max --group 32 --activity 0.5"; do
        deadwood gate -m convert-keep.gguf -s stats.h5 -o "gate-$(echo $t | tr -c 'a-z0-9.\n' -).gguf" --rule $t -q
    done
    for t in F16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 IQ4_NL Q2_K Q3_K Q4_K Q5_K Q6_K affine2 minmax4; do
        deadwood requant -m convert-keep.gguf --type $t -o requant-$t.gguf -q
    done
    for t in Q4_K_M Q3_K_M Q2_K; do deadwood requant -m convert-keep.gguf --mixture $t -s stats.h5 -o mixture-$t.gguf -q; done
    deadwood requant -m convert-keep.gguf --type Q4_0 --cold-rate 0.5 --cold-type Q2_K --metric energy -s stats.h5 -o cold.gguf -q
}

# The metadata but for the lineage, and the tensors, as text: inspect reads both builds' files alike.
describe() { "$new/deadwood-inspect" "$1" --keys | grep -vE 'deadwood\.lineage'; "$new/deadwood-inspect" "$1" --tensors; }
data_bytes() { # the tensors' data: the last bytes of the file, as many as all tensors take, each padded to 32
    "$new/deadwood-inspect" "$1" --tensors | awk '$NF + 0 { n += int(($NF + 31) / 32) * 32 } END { printf "%d", n }'
}
compare() { # OLD NEW
    cmp -s "$1" "$2" && { echo same; return; }
    local n
    n=$(data_bytes "$1")
    [ "$n" = "$(data_bytes "$2")" ] && cmp -s <(tail -c "$n" "$1") <(tail -c "$n" "$2") || { echo DIFFERENT; return; }
    diff -q <(describe "$1" | tail -n +1) <(describe "$2") >/dev/null && { echo lineage; return; }
    diff -q <(describe "$1" | grep -v 'deadwood\.gate\.dense') <(describe "$2" | grep -v 'deadwood\.gate\.dense') >/dev/null && { echo marks; return; }
    echo DIFFERENT
}

(make_all "$old" "$work/old")
(make_all "$new" "$work/new")
bad=0
for f in "$work"/old/*.gguf "$work"/old/*.plan "$work"/old/*.h5; do
    name=$(basename "$f")
    case $name in *.gguf) how=$(compare "$f" "$work/new/$name") ;; *) how=$(cmp -s "$f" "$work/new/$name" && echo same || echo DIFFERENT) ;; esac
    printf '%-12s %s\n' "$how" "$name"
    [ "$how" != DIFFERENT ] || bad=1
done
exit $bad
