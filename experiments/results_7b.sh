#!/bin/sh
# results_7b.sh - what `make results-7b` runs: the four attempts' speed and size on the shape of a 7B model.
#
# Random weights of that shape, every matrix Q4_0.  The shares of open neurons are those of the embedded model: 0.8 costs it
# 1 % of perplexity; its predictors of that gate open 0.85, those of a gate of 0.5 open 0.61 (results/predictors.md).
# They have its relative rank, n_embd / 6.  The models of one run take turns, the dense one among them.  Files are in
# build/7b, 23 GB, and are kept as long as the commit is the same; about ten minutes on two idle cores.  Tables and
# plots are collected in build/7b/new and replace those in results/ together at the end.
set -eu
cd "$(dirname "$0")/.."
. experiments/clean_tree.sh
PATH="$PWD/build:$PATH"
out=build/7b
new=$out/new
start_folder "$out"
rm -rf "$new"
mkdir "$new"

# make_file NAME COMMAND..: unless it is there
make_file() {
    name=$1
    shift
    [ -f "$out/$name.gguf" ] || deadwood "$@" -o "$out/$name.gguf"
}

make_file dense synth --shape qwen2.5-7b --type Q4_0
for width in 15104 13312; do
    rate=$(awk -v w=$width 'BEGIN {print 1 - w / 18944}')
    [ -f "$out/cut-$width.gguf" ] || deadwood rank -m "$out/dense.gguf" -o "$out/$width.tsv" --metric random --rate "$rate" --group 64
    make_file cut-$width cut -m "$out/dense.gguf" -p "$out/$width.tsv"
done
make_file gated synth --shape qwen2.5-7b --type Q4_0 --gate
make_file predicted synth --shape qwen2.5-7b --type Q4_0 --gate --predictors 592

rows=$out/rows.tsv
rm -f "$rows"
speed() { deadwood score --speed-only --speed-prefill 0 --speed-decode 16 --speed-rounds "${ROUNDS:-9}" -o "$rows" "$@"; }
speed -m "$out/dense.gguf" "$out/cut-15104.gguf" "$out/cut-13312.gguf"
speed -m "$out/dense.gguf" "$out/gated.gguf" --select listed --inject 0.8
speed -m "$out/dense.gguf" "$out/gated.gguf" --select fused --inject 0.8
for share in 0.85 0.61; do speed -m "$out/dense.gguf" "$out/predicted.gguf" --select fused --inject $share; done
for ending in md tsv; do
    deadwood table "$rows" -o "$new/7b.$ending" --columns model,select,activity,file_bytes,bytes_per_token,decode_tok_s,decode_spread,read_share,disturbed
done

build/bench_sparse >"$new/sparse-7b.tsv"
for group in 64 1; do
    deadwood table "$new/sparse-7b.tsv" -o "$new/sparse-7b-$group.md" --where group=$group \
        --plot "$new/sparse-7b-$group.svg" --x inactive --y ms,ideal_ms --by path
done

mv -f "$new"/* results/
