#!/bin/sh
# results.sh - what `make results` runs: the grids of the embedded model, and the tables and plots made of their rows.
#
# Sweeps are kept in build/results: interrupted, the same command goes on; without changes nothing is computed again.
set -eu
cd "$(dirname "$0")/.."
PATH="$PWD/build:$PATH"

# grid GRID NAME: the rows of experiments/grids/GRID.grid, in $rows; their numbers in results/NAME.tsv
grid() {
    deadwood sweep "experiments/grids/$1.grid" -o "build/results/$1" --keep none
    rows=build/results/$1/rows.tsv
    deadwood table "$rows" -o "results/$2.tsv"
}

# table NAME OPTIONS..: results/NAME.md of these rows; plot likewise: results/NAME.svg
table() { name=$1 && shift && deadwood table "$rows" -o "results/$name.md" "$@"; }
plot() { name=$1 && shift && deadwood table "$rows" -o - --plot "results/$name.svg" "$@" >build/results/plotted; }

mkdir -p build/results
grid mini cut
table cut --join seed --sort ppl
plot cut-size --join seed --where group!=1
plot cut-rate --join seed --where group=64 --x rate

grid requant requant
table requant --sort ppl --columns family,type,via,nominal_bits,file_bytes,ppl,ln_ratio,kl_mean,top1_agree,verdict
plot requant --by family --where family!=detour

grid gate gate
table gate
plot gate --x coverage --by group
