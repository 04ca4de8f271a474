# results/exact.tsv is what this machine computes, to 1e-6, for four models and a text; the long tests take all, and portable C beside the best kernels.
[ -z "${SAN:-}" ] || { echo "computed by definition, which takes too long under sanitizers" >&2; exit 77; }

# differences FILE ROWS: rows that lack in FILE, or whose nll_nats is another
differences() {
    awk -F '\t' -v n_rows="$2" '
        FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        NR == FNR { stored[$at["model"], $at["text"]] = $at["nll_nats"]; next }
        { n++; was = stored[$at["model"], $at["text"]]; is = $at["nll_nats"]
          if (!(was > 0 && is > 0 && is - was <= 1e-6 * was && was - is <= 1e-6 * was)) { print $at["model"], $at["text"] ": " is ", stored: " was; bad = 1 } }
        END { if (n != n_rows) { print n " rows, expected " n_rows; bad = 1 } exit bad }
    ' "$ROOT/results/exact.tsv" "$1"
}

if [ -z "${DW_SLOW:-}" ]; then
    export MODELS='convert-keep.gguf cut-energy.gguf requant-Q2_K.gguf requant-Q4_K_M-weighted.gguf'
    sh "$ROOT/experiments/exact.sh" got.tsv german
    differences got.tsv 4
    exit
fi
sh "$ROOT/experiments/exact.sh" best.tsv
differences best.tsv $(($(wc -l <"$ROOT/results/exact.tsv") - 1))
DEADWOOD_CPU=portable sh "$ROOT/experiments/exact.sh" portable.tsv
cmp best.tsv portable.tsv
