#!/bin/sh
# demo.sh - what `make demo` runs: four attempts at making a language model smaller or faster, and what they cost.
#
#   make demo                                  the embedded model, some minutes on two cores
#   make demo MODEL=FOLDER|M.gguf TEXTS=DIR    another one; DIR/calib/*.txt and DIR/eval/*.txt are the texts
#   WINDOWS=A-B                                only these windows of each evaluation text (a large model takes hours)
#
# Every step is an ordinary command, printed before it runs; files are in build/demo.  What the same command made of the same
# files stands there and is not made again: interrupted, the demo goes on.
set -eu
cd "$(dirname "$0")/.."

missing=""
for tool in cc make pkg-config gnuplot; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
for library in libpcre2-8 jansson libzstd hdf5 openblas lapacke; do
    pkg-config --exists "$library" 2>/dev/null || missing="$missing $library"
done
if [ -n "$missing" ]; then
    echo "demo: missing:$missing" >&2
    echo "demo: install what README names:" >&2
    grep -m 1 'apt-get install' README.md | sed 's/^/  /' >&2
    exit 1
fi

model=${MODEL:-experiments/mini}
texts=${TEXTS:-experiments/texts}
out=build/demo
rows=$out/rows.tsv
prompt=${PROMPT:-The function returns}
for folder in "$texts/calib" "$texts/eval"; do
    ls "$folder"/*.txt >/dev/null 2>&1 || { echo "demo: no texts '$folder/*.txt'; give TEXTS=DIR with calib/ and eval/ in it" >&2; exit 1; }
done

make -s -j2
PATH="$PWD/build:$PATH"
mkdir -p "$out/made"

# is_made FILE COMMAND: by this command, and nothing that it reads is newer.
is_made() {
    file=$1
    shift
    [ -s "$file" ] && [ "$*" = "$(cat "$out/made/${file##*/}" 2>/dev/null)" ] || return 1
    for word in "build/deadwood-$2" "$@"; do
        if [ "$word" != "$file" ] && [ -f "$word" ] && [ "$word" -nt "$file" ]; then return 1; fi
    done
}

# Prints a command as it would be typed, texts as a pattern and without -q, and runs it unless its file (-o) is there.
run() {
    file='' last=''
    for word in "$@"; do
        if [ "$last" = -o ]; then file=$word; fi
        last=$word
    done
    printf '\n$'
    shown=""
    for word in "$@"; do
        case $word in
        "$texts"/*/*.txt) word=${word%/*}/*.txt ;;
        -q) continue ;;
        *[!A-Za-z0-9_./=,-]*) word="'$word'" ;;
        esac
        [ "$word" = "$shown" ] || printf ' %s' "$word"
        shown=$word
    done
    printf '\n'
    if is_made "$file" "$@"; then
        echo "($file is there)"
    else
        rm -f "$file"
        "$@" && printf '%s' "$*" >"$out/made/${file##*/}"
    fi
}

say() { printf '\n%s\n' "$*" | fold -s -w 110; }
heading() { printf '\n==== %s\n' "$*"; }

# score NAME OPTIONS MODEL...: rows of models (names in build/demo, without .gguf), compared with the dense one.
score() {
    name=$1 options=$2
    shift 2
    # shellcheck disable=SC2086  # options are several words
    run deadwood score -m $(printf "$out/%s.gguf " "$@") $options --base "$out/dense.gguf" -f "$texts"/eval/*.txt \
        ${WINDOWS:+--windows "$WINDOWS"} -o "$out/rows-$name.tsv" -q | grep -E '^(\$|\(|model|.* \* )'
    if [ "$name" = dense ]; then
        cp "$out/rows-dense.tsv" "$rows"
    else
        grep -vE '^(#|date)' "$out/rows-$name.tsv" >>"$rows"
    fi
}

# cell MODEL COLUMN [FILE]: of the last row of a model, over all texts where there are several.
cell() {
    awk -F '\t' -v model="$1.gguf" -v column="$2" '
        /^#/ {next}
        !n {for (n = 1; n <= NF; n++) at[$n] = n; next}
        $at["model"] == model && ($at["text"] == "*" || value == "") {value = $at[column]}
        END {print value}' "${3:-$rows}"
}

# speed SELECT MODEL: decodes with it and with the dense model in turn; gain is the ratio of their speeds.
speed() {
    at=$out/speed-$1-$2.tsv
    run deadwood score -m "$out/dense.gguf" "$out/$2.gguf" --select "$1" --speed-only --speed-prefill 0 -o "$at" -q | grep -E '^(\$|\()'
    gain=$(ratio "$(cell "$2" decode_tok_s "$at")" "$(cell dense decode_tok_s "$at")")
}

percent() { awk -v x="$1" 'BEGIN {printf "%.1f %%", 100 * x}'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN {printf "%.2f", a / b}'; }
costs() { awk -v r="$(cell "$1" ln_ratio)" 'BEGIN {printf "%.1f %%", 100 * (exp(r) - 1)}'; } # of perplexity

hear() {
    for name; do
        printf '\n%-14s ' "$name:"
        deadwood generate -m "$out/$name.gguf" -p "$prompt" -n 30 --temp 0 -q | tr '\n' ' '
    done
    echo
}

# What it will take, before it takes it.  Disk: about 20 times the model.  Time: 20 evaluations of the texts, at 0.4 of prefill's
# speed for the output matrix and the comparison; four passes over the calibration texts; and what is timed: six rounds of
# 512 tokens read and 64 written for each of 20 rows, and of 64 written for ten more.
announce() {
    deadwood score -m "$out/dense.gguf" --speed-only --speed-prefill 128 --speed-decode 4 --speed-rounds 1 -o "$out/rows-first.tsv" -q >/dev/null
    awk -v model="$(wc -c <"$out/dense.gguf")" -v eval="$(cat "$texts"/eval/*.txt | wc -c)" -v calib="$(cat "$texts"/calib/*.txt | wc -c)" \
        -v windows="${WINDOWS:-}" -v files="$(ls "$texts"/eval/*.txt | wc -l)" -v all="$out" \
        -v prefill="$(cell dense prefill_tok_s "$out/rows-first.tsv")" -v decode="$(cell dense decode_tok_s "$out/rows-first.tsv")" '
        function size(bytes) {return bytes < 1e9 ? sprintf("%.0f MB", bytes / 1e6) : sprintf("%.1f GB", bytes / 1e9)}
        BEGIN {
            split(windows, range, "-")
            n_eval = eval / 3.5
            if (windows != "") n_eval = 512 * files * (range[2] == "" ? range[1] : range[2] - range[1] + 1)
            seconds = 20 * 2.5 * n_eval / prefill + 4 * calib / 3.5 / prefill + 20 * 6 * (512 / prefill + 64 / decode) + 10 * 6 * 64 / decode
            printf "It will take about %.0f minutes here, %s of disk in %s, and %s of memory for the models that run side by side", \
                seconds / 60 + 1, size(20 * model), all, size(6 * model)
            print " (with less it takes longer)." (windows == "" && seconds > 3600 ? "  WINDOWS=1-4 shortens it." : "")
        }'
    rm -f "$out/rows-first.tsv"
}

heading "The model as it is"
case $model in
*.gguf) [ "$model" -ot "$out/dense.gguf" ] || cp "$model" "$out/dense.gguf" ;;
*) run deadwood convert "$model" -o "$out/dense.gguf" -q ;;
esac
announce
score dense '' dense
say "What its neurons do, on texts that are not the ones it is scored on:"
run deadwood collect -m "$out/dense.gguf" -f "$texts"/calib/*.txt -o "$out/stats.h5" -q

heading "Attempt 1: skip at run time the neurons that a token leaves inactive"
for activity in 0.9 0.8 0.7 0.5; do
    run deadwood gate -m "$out/dense.gguf" -s "$out/stats.h5" -o "$out/gated-$activity.gguf" --rule cats --activity $activity -q
done
score gated '--select fused' gated-0.9 gated-0.8 gated-0.7 gated-0.5
gated=gated-0.9 # the sparsest that costs at most 2 % of perplexity
for name in gated-0.8 gated-0.7 gated-0.5; do
    if awk -v r="$(cell $name ln_ratio)" 'BEGIN {exit !(r <= log(1.02))}'; then gated=$name; fi
done
speed listed $gated
listed=$gain
speed fused $gated
fused=$gain
say "The sparsest that costs at most 2 % is $gated: it computes $(percent "$(cell $gated coverage)") of the neurons." \
    "Decoding runs at $listed of the dense speed where the open neurons are listed and gathered, and at $fused where gate, test, up" \
    "and down are one walk." \
    "All of the gate must be computed to know what to skip, so even without any overhead at most" \
    "$(awk -v c="$(cell $gated coverage)" 'BEGIN {printf "%.0f %%", 100 * (1 - c) * 2 / 3}') of the FFN could be saved."

heading "Attempt 2: predict with small networks which neurons a token needs"
run deadwood trace -m "$out/$gated.gguf" -f "$texts"/calib/*.txt -c 256 -o "$out/traces.h5" -q
run deadwood train -m "$out/$gated.gguf" -x "$out/traces.h5" -o "$out/predicted.gguf" --report "$out/predictors.tsv" -q
score predicted '--select fused' predicted
speed fused predicted
predicted=$gain
say "The predictors open $(percent "$(cell predicted coverage)") of the neurons and cost $(costs predicted) of perplexity, at" \
    "$gain of the dense speed.  Accuracy says little: look at what 'never' has, which closes everything, and at what" \
    "'static' captures, always the same neurons and no network."

heading "Attempt 3: cut neurons for good"
for rate in 0.2 0.3; do
    for metric in activation random; do
        run deadwood rank -m "$out/dense.gguf" -s "$out/stats.h5" -o "$out/$metric-$rate.tsv" --metric $metric --rate $rate --group 64 -q
        run deadwood cut -m "$out/dense.gguf" -p "$out/$metric-$rate.tsv" -o "$out/$metric-$rate.gguf" -q
    done
done
run deadwood rank -m "$out/dense.gguf" -s "$out/stats.h5" -o "$out/single-0.2.tsv" --metric activation --rate 0.2 --group 1 -q
run deadwood cut -m "$out/dense.gguf" -p "$out/single-0.2.tsv" -o "$out/single-0.2.gguf" -q
score cut '' activation-0.2 random-0.2 single-0.2 activation-0.3 random-0.3
speed auto activation-0.2
cut20=$gain
speed auto activation-0.3
cut30=$gain
say "Groups of 64 chosen by mean activation cost $(costs activation-0.2) of perplexity at 20 %, groups drawn by lot $(costs random-0.2):" \
    "neurons in a group have little in common.  Chosen one by one, they cost $(costs single-0.2)."

heading "Attempt 4: requantize"
run deadwood requant -m "$out/dense.gguf" -o "$out/q4.gguf" --type affine4 -q
run deadwood requant -m "$out/q4.gguf" -o "$out/q4-q2.gguf" --type affine2 --lossy-twice -q
run deadwood requant -m "$out/dense.gguf" -o "$out/q2.gguf" --type affine2 -q
run deadwood requant -m "$out/dense.gguf" -o "$out/q2_k.gguf" --mixture Q2_K -s "$out/stats.h5" -q
run deadwood requant -m "$out/dense.gguf" -o "$out/q4_k_m.gguf" --mixture Q4_K_M -s "$out/stats.h5" -q
score requant '' q4 q4-q2 q2 q2_k q4_k_m
say "Two bits by round-to-nearest multiply perplexity by $(ratio "$(cell q2 ppl)" "$(cell dense ppl)"); the way over four bits makes it" \
    "$(ratio "$(cell q4-q2 ppl)" "$(cell dense ppl)").  With scales of scales, weighted by what the inputs were (Q2_K): $(ratio "$(cell q2_k ppl)" "$(cell dense ppl)")."

heading "What they say"
hear dense $gated predicted activation-0.2 activation-0.3 q4-q2 q2_k

heading "All of it"
run deadwood table "$rows" -o "$out/table.md" -q --plot "$out/plot.svg" \
    --columns model,file_bytes,peak_rss_bytes,prefill_tok_s,decode_tok_s,decode_tok_s/base,ppl,ln_ratio,kl_mean,top1_agree,coverage
cat "$out/table.md"

# line ATTEMPT BEFORE AFTER SAID MODEL SPEED: what the post measured, and what came out here.
line() {
    awk -v what="$1" -v before="$2" -v after="$3" -v said="$4" -v speed="$6" -v ln="$(cell "$5" ln_ratio)" -v mb="$(cell "$5" file_bytes)" 'BEGIN {
        post = after == "-" ? "-" : sprintf("%s -> %s: %+.1f %%", before, after, 100 * (after / before - 1))
        here = speed == "-" ? "-" : sprintf("%+.0f %%", 100 * (speed - 1))
        printf "| %s | %s | %s | %.2f | %s | x %.3g |\n", what, post, said, mb / 1e6, here, exp(ln)}'
}

heading "Beside the post that it retells"
{
    echo "| attempt | the post, tokens a second | the post says | MB here | decoding here | perplexity here |"
    echo "|:--|:--|:--|--:|--:|--:|"
    line "1 skip inactive neurons, listed" 70 70 "the overhead ate the gain" $gated "$listed"
    line "1 in one walk" - - "-" $gated "$fused"
    line "2 predict them" 70 71 "89 % accuracy" predicted "$predicted"
    line "3 cut 20 % in groups" 69.8 79.9 "+16 %; 4.2 -> 3.6 GB; text noticeably worse" activation-0.2 "$cut20"
    line "3 cut 30 % in groups" 69.8 87.9 "+28 %; 4.2 -> 3.3 GB; text noticeably worse" activation-0.3 "$cut30"
    line "4 two bits over four" - - "word garbage" q4-q2 -
} | tee "$out/story.md"
say "The post's percentages are computed from its own speeds; where they differ from what it says, both stand there.  A model of" \
    "this size lives in the cache: what skipped bytes are worth on a large one is in results/README.md."
say "The table is $out/table.md, the plot $out/plot.svg; every column is in $rows (deadwood score --columns says what each means)." \
    "How a file came to be: deadwood inspect $out/q4-q2.gguf --lineage"
