#!/bin/sh
# results.sh - what `make results` runs: the grids of the embedded model, and the tables and plots made of their rows.
#
# Sweeps are kept in build/results: interrupted, the same command goes on; without changes nothing is computed again.
# The predictors' models are kept as long as the commit is the same.  Tables and plots are collected in
# build/results/new and replace those in results/ together at the end, so that the tree stays clean while rows are
# measured.  A dirty tree is refused unless DIRTY=1.  GRIDS='gate requant' makes only what belongs to these.
set -eu
cd "$(dirname "$0")/.."
. experiments/clean_tree.sh
PATH="$PWD/build:$PATH"

# wanted NAME: whether GRIDS names it, or nothing
wanted() { case " ${GRIDS:-$1} " in *" $1 "*) ;; *) return 1 ;; esac; }

for name in ${GRIDS:-}; do
    case " mini requant gate predict bytes cuts repair cold rounding " in
    *" $name "*) ;;
    *) echo "results: GRIDS: there is no '$name'; there are mini requant gate predict bytes cuts repair cold rounding" >&2 && exit 1 ;;
    esac
done

# grid GRID NAME [OPTIONS..]: the rows of experiments/grids/GRID.grid, in $rows; their numbers in NAME.tsv; OPTIONS of sweep
grid() {
    grid=$1 && name=$2 && shift 2
    deadwood sweep "experiments/grids/$grid.grid" -o "build/results/$grid" --keep none "$@"
    rows=build/results/$grid/rows.tsv
    deadwood table "$rows" -o "$new/$name.tsv"
}

# table NAME OPTIONS..: NAME.md of these rows; plot likewise: NAME.svg
table() { name=$1 && shift && deadwood table "$rows" -o "$new/$name.md" "$@"; }
plot() { name=$1 && shift && deadwood table "$rows" -o - --plot "$new/$name.svg" "$@" >build/results/plotted; }

new=build/results/new
rm -rf "$new"
mkdir -p "$new"
if wanted mini; then
    grid mini cut --base exact
    table cut --join seed --sort ppl
    plot cut-size --join seed --where group!=1
    plot cut-rate --join seed --where group=64 --x rate
fi
if wanted requant; then
    grid requant requant --base exact
    table requant --sort ppl --columns family,type,weighted,via,nominal_bits,file_bytes,ppl,ln_ratio,kl_mean,top1_agree,verdict
    plot requant --by family,weighted --where family!=detour
fi
if wanted gate; then
    grid gate gate --base exact
    table gate
    plot gate --x coverage --by group
fi

# Predictors: a report of what each finds beside the trivial choices, and rows of the models that they make.
if wanted predict; then
    out=build/results/predict
    rows=$out/rows.tsv
    start_folder "$out"
    rm -f "$rows" "$out/report.tsv"
    [ -f "$out/dense.gguf" ] || deadwood convert experiments/mini -o "$out/dense.gguf"
    [ -f "$out/stats.h5" ] || deadwood collect -m "$out/dense.gguf" -f experiments/texts/calib/*.txt -c 256 -o "$out/stats.h5"
    set -- cats-1-0.8 cats-1-0.5 cats-1-0.3 group-max-64-0.75 group-max-64-0.5
    models=""
    for gate; do
        activity=${gate##*-} rest=${gate%-*}
        gated=$out/gate-$gate.gguf predicted=$out/predicted-$gate.gguf
        [ -f "$gated" ] || deadwood gate -m "$out/dense.gguf" -s "$out/stats.h5" --rule "${rest%-*}" --group "${rest##*-}" --activity "$activity" -o "$gated" -q
        [ -f "$out/$gate.h5" ] || deadwood trace -m "$gated" -f experiments/texts/calib/*.txt -c 256 --tokens 16384 -o "$out/$gate.h5"
        [ -f "$predicted" ] || deadwood train -m "$gated" -x "$out/$gate.h5" -o "$predicted" --report "$out/$gate.tsv" >"$out/$gate.txt"
        [ -f "$out/report.tsv" ] || awk 'NR == 1 {print "gate\t" $0}' "$out/$gate.tsv" >"$out/report.tsv"
        awk -v gate="$gate" '$1 == "*" {print gate "\t" $0}' "$out/$gate.tsv" >>"$out/report.tsv" # over all layers
        models="$models $gated $predicted"
    done
    # shellcheck disable=SC2086  # a list of files
    deadwood score -m "$out/dense.gguf" $models --base "$out/dense.gguf" -f experiments/texts/eval/*.txt --select fused --no-speed -o "$rows"
    deadwood table "$rows" -o "$new/predict.tsv"
    table predict
    deadwood table "$out/report.tsv" -o "$new/predictors.md" --columns gate,method,open,active,accuracy,recall,precision,mass,mass_p5,gain,gain_ci90
fi

# Models and texts that lie beside the project: fewer neurons or fewer bits?
[ -d ../shared/reference-model/base ] || wanted() { return 1; }
if wanted bytes; then
    grid bytes bytes --base stored
    table bytes --join seed --sort file_bytes
    plot bytes --join seed --y ln_ratio --by metric,after
fi
if wanted cuts; then
    grid cuts cuts --base stored --controls none # random twins stand in bytes
    table cuts --sort file_bytes --columns rate,mixture,file_bytes,ppl,ln_ratio,decode_tok_s,prefill_tok_s,peak_rss_bytes,verdict
    plot cuts --y ln_ratio --by rate
fi
# The rows of tables that are written by hand.
if wanted repair; then grid repair repair --base stored --controls none; fi
if wanted cold; then grid cold cold-neurons --base stored --controls none; fi
if wanted rounding; then grid rounding double-quantization --base stored --controls none; fi

set -- "$new"/*
[ -e "$1" ] || { echo "results: GRIDS='$GRIDS' needs the model '../shared/reference-model/base', which is not here" >&2 && exit 1; }
mv -f "$@" results/
