#!/bin/sh
# exact.sh - quality by definition: what `make exact` writes and `make test` compares.
#
#     experiments/exact.sh OUT.tsv [TEXT...]      TEXT: code, english, german, math, spanish; default: all
#
# MODELS names the files to score, as in the table's first column; default: all.
#
# Files made without a BLAS (converted, cut, rounded), scored by --backend ref, from statistics that ref collected too: all
# of it is the same on every machine, for every instruction set and number of threads, to 1e-6 of a nat and better.
set -eu
out=$1
shift
[ $# -gt 0 ] || set -- code english german math spanish
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
ln -s "$here/texts" "$work/texts" # models and texts are words of lists, so their paths are those below $work
texts=
for text in "$@"; do texts="$texts texts/eval/$text.txt"; done

for type in keep f16 q8_0 q4_0; do
    deadwood convert "$here/mini" -o "$work/convert-$type.gguf" --type $type -q
done
dense=$work/convert-keep.gguf

deadwood collect -m "$dense" -f "$here"/texts/calib/*-1.txt -c 128 --windows 1 --backend ref -o "$work/stats.h5" -q
for metric in activation energy random; do
    deadwood rank -m "$dense" -s "$work/stats.h5" --metric $metric --group 64 --rate 0.25 --seed 1 -o "$work/plan.tsv" -q
    deadwood cut -m "$dense" -p "$work/plan.tsv" -o "$work/cut-$metric.gguf" -q
done

for type in affine2 minmax4 Q2_K Q3_K Q4_K Q5_K Q6_K; do
    deadwood requant -m "$dense" --type $type -o "$work/requant-$type.gguf" -q
done
deadwood requant -m "$dense" --mixture Q4_K_M -s "$work/stats.h5" -o "$work/requant-Q4_K_M-weighted.gguf" -q

(
    cd "$work"
    # shellcheck disable=SC2012,SC2086  # words
    deadwood score -m $(ls ${MODELS:-*.gguf}) -f $texts --backend ref -c 128 --windows 1 --protocol full --no-speed -o rows.tsv -q >shown
)
deadwood table "$work/rows.tsv" --text all --where text!='*' --columns model,text,tokens_scored,nll_nats -o "$out"
