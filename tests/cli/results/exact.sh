# results/exact.tsv is what this machine computes, to 1e-6; the long tests take all texts, and portable C beside the best kernels.
[ -z "${SAN:-}" ] || { echo "computed by definition, which takes too long under sanitizers" >&2; exit 77; }

# differences FILE TEXTS: rows that lack in FILE, or whose nll_nats is another
differences() {
    awk -F '\t' -v n_texts="$2" '
        FNR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
        NR == FNR { stored[$at["model"], $at["text"]] = $at["nll_nats"]; model[$at["model"]]; next }
        { n++; was = stored[$at["model"], $at["text"]]; is = $at["nll_nats"]
          if (!(was > 0 && is > 0 && is - was <= 1e-6 * was && was - is <= 1e-6 * was)) { print $at["model"], $at["text"] ": " is ", stored: " was; bad = 1 } }
        END { for (m in model) n_models++; if (n != n_models * n_texts || !n) { print n " rows, expected " n_models * n_texts; bad = 1 } exit bad }
    ' "$ROOT/results/exact.tsv" "$1"
}

if [ -z "${DW_SLOW:-}" ]; then
    sh "$ROOT/experiments/exact.sh" got.tsv german
    differences got.tsv 1
    exit
fi
sh "$ROOT/experiments/exact.sh" best.tsv
differences best.tsv 5
DEADWOOD_CPU=portable sh "$ROOT/experiments/exact.sh" portable.tsv
cmp best.tsv portable.tsv
