#!/bin/sh
# demo.sh - what `make demo` runs: five attempts at making a language model smaller or faster, and what they cost.
#
#   make demo                                  the embedded model, five minutes on two idle cores, three of them in attempt 5
#   make demo MODEL=FOLDER|M.gguf TEXTS=DIR    another one, from a Hugging Face or MLX folder or a GGUF file of any type
#
#   TEXTS=DIR    DIR/calib/*.txt and DIR/eval/*.txt, plain text in UTF-8, no file in both; each has at least one window
#                (512 tokens, about 2000 characters of English; windows are as long as the context of a shorter model)
#   SOURCE=...   the same model in 16 bits (GGUF or folder), from which a quantized MODEL is rounded again
#   WINDOWS=A-B  only these windows of each evaluation text, and as many of each calibration text
#   HEAL=M       minutes that the cut model learns in attempt 5; 3; 0 leaves the attempt out
#   QUICK=1      one window, one round, little training: shows whether a model goes through; its numbers mean nothing
#   OUT=DIR      where the files go; build/demo for the embedded model, build/demo-NAME for another
#
# Every step is an ordinary command, which is printed before it runs.  A command that fails says why, what needs its file
# is skipped, and the rest goes on.  What the same command made of the same files is kept: after an interrupt the same
# `make demo` continues.
set -u
cd "$(dirname "$0")/.." || exit 1
trap 'exit 130' INT

fail() {
    printf 'demo: %s\n' "$@" >&2
    exit 1
}

# ---- what is needed

missing=""
for tool in cc make pkg-config gnuplot; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
for library in libpcre2-8 jansson libzstd hdf5 openblas lapacke; do
    pkg-config --exists "$library" 2>/dev/null || missing="$missing $library"
done
[ -z "$missing" ] || fail "missing:$missing" "install what README names:" "$(grep -m 1 'apt-get install' README.md)"

model=${MODEL:-experiments/mini}
texts=${TEXTS:-experiments/texts}
prompt=${PROMPT:-The function returns}
windows=${WINDOWS:-} rounds=5 trace_tokens=8192 epochs=20 heal=3
[ -z "${QUICK:-}" ] || { windows=${windows:-1} rounds=1 trace_tokens=1024 epochs=1 heal=0.02; }
heal=${HEAL:-$heal}
case $windows in *[!0-9-]* | -* | *- | *-*-*) fail "WINDOWS '$windows' is no range of windows like 1-4" ;; esac
case $heal in '' | . | *[!0-9.]* | *.*.*) fail "HEAL '$heal' is not a number of minutes; 0 leaves attempt 5 out" ;; esac

needs="TEXTS=DIR needs DIR/calib/*.txt and DIR/eval/*.txt: plain text in UTF-8, no file in both, each at least 2000 characters"
for folder in "$texts/calib" "$texts/eval"; do
    ls "$folder"/*.txt >/dev/null 2>&1 || fail "there are no texts '$folder/*.txt'" "$needs"
done
twice=$(sha256sum "$texts"/calib/*.txt "$texts"/eval/*.txt | sort | awk '$1 == last {print file " and " $2} {last = $1; file = $2}')
[ -z "$twice" ] || fail "the same text stands in two files: $twice" "$needs"

if [ -d "$model" ]; then
    [ -f "$model/config.json" ] || fail "the folder '$model' has no config.json; MODEL is a Hugging Face or MLX folder, or a GGUF file"
else
    [ -f "$model" ] || fail "there is no '$model'; MODEL is a Hugging Face or MLX folder, or a GGUF file"
fi

# An absolute path; one folder of files for each model.
path_of() { (cd "$(dirname "$1")" && printf '%s/%s' "$(pwd -P)" "$(basename "$1")"); }
model_path=$(path_of "$model")
name=$(basename "$model_path" .gguf | tr -c 'A-Za-z0-9._\n' '-')
if [ "$model_path" = "$(pwd -P)/experiments/mini" ]; then out=build/demo; else out=build/demo-$name; fi
if [ -z "${OUT:-}" ] && [ -f "$out/model" ] && [ "$(head -n 1 "$out/model")" != "$model_path" ]; then
    out=$out-$(printf '%s' "$model_path" | cksum | cut -d ' ' -f 1) # another model has the same name
fi
out=${OUT:-$out}
case $out in *[!A-Za-z0-9_./-]*) fail "OUT '$out' may hold letters, digits and _ . / - only" ;; esac

build=${DEMO_BUILD:-build}
[ -n "${DEMO_BUILD:-}" ] || make -s -j2 || exit 1
PATH="$(cd "$build" && pwd):$PATH"
mkdir -p "$out/made" || exit 1
exec 9>"$out/lock" || exit 1
! command -v flock >/dev/null || flock -n 9 || fail "another run works in '$out'; wait for it, or give another folder with OUT=DIR"

# look NAME PATH: what was made of another state of a model is made again; $out/NAME says which state it was.
look() {
    state=$(printf '%s\n' "$2"; ls -lnL "$2" 2>/dev/null | sed 's/^[^ ]* *//')
    [ "$state" = "$(cat "$out/$1" 2>/dev/null)" ] && return
    rm -rf "$out/made" && mkdir "$out/made" && printf '%s\n' "$state" >"$out/$1"
}
look model "$model_path"
[ -z "${SOURCE:-}" ] || look source "$SOURCE"
began=$(date +%s)

# ---- commands

say() { printf '\n%s\n' "$*" | fold -s -w 110 | sed 's/ *$//'; }
heading() { printf '\n==== %s\n' "$*"; }

# is_of FILE NOTE COMMAND: the file is of this command, as the note says, and nothing that the command reads is newer.
is_of() {
    of=$1 note=$2
    shift 2
    [ -s "$of" ] && [ "$*" = "$(cat "$note" 2>/dev/null)" ] || return 1
    for word in "$build/deadwood-$2" "$@"; do
        if [ "$word" != "$of" ] && [ -f "$word" ] && [ "$word" -nt "$of" ]; then return 1; fi
    done
}

# Prints a command as it would be typed, texts as a pattern and without -q.
show() {
    printf '\n$'
    shown=""
    for word; do
        case $word in
        "$texts"/*/*.txt) word=${word%/*}/*.txt ;;
        -q) continue ;;
        *[!A-Za-z0-9_./=,-]*) word="'$word'" ;;
        esac
        [ "$word" = "$shown" ] || printf ' %s' "$word"
        shown=$word
    done
    printf '\n'
}

# run COMMAND: prints it and runs it unless its file (-o) is there.  False when it fails; $why is then its last message.
run() {
    file='' last=''
    for word; do
        if [ "$last" = -o ]; then file=$word; fi
        last=$word
    done
    show "$@"
    made=$out/made/${file##*/}
    if is_of "$file" "$made" "$@"; then
        echo "($file is there)"
        return 0
    fi
    rm -f "$file"
    # Programs refuse what another command was interrupted in.
    is_of "$made.begun" "$made.begun" "$@" || rm -f "$file.part" "$file.checkpoint"
    printf '%s' "$*" >"$made.begun"
    if "$@" 2>"$out/said"; then
        cat "$out/said" >&2
        printf '%s' "$*" >"$made"
        rm "$made.begun"
        return 0
    fi
    why=$(tail -n 1 "$out/said")
    why=${why#deadwood-*: }
    printf '(failed: %s)\n' "$why"
    skipped="$skipped
- ${file##*/}: $why"
    return 1
}

skipped="" why=""
has() { [ -s "$out/$1.gguf" ] && [ -f "$out/made/$1.gguf" ]; } # a model that was made
is() { awk "BEGIN {exit !($1)}"; }                             # a comparison of numbers

# ---- rows

scored="" timed="" # names of the files of rows and of speeds, in order

# score NAME OPTIONS MODEL...: rows of those models (names in $out, without .gguf) that exist, compared with the dense one.
score() {
    rows_of=$1 options=$2 files=""
    shift 2
    for each; do
        if has "$each"; then files="$files $out/$each.gguf"; fi
    done
    [ -n "$files" ] || return 1
    # shellcheck disable=SC2086  # options and files are several words
    run deadwood score -m $files $options --base "$out/dense.gguf" -f "$texts"/eval/*.txt -c "$ctx" \
        ${windows:+--windows "$windows"} --no-speed -o "$out/rows-$rows_of.tsv" -q >"$out/shown" || { cat "$out/shown"; return 1; }
    grep -E "^(\\$|\(|model|.* $([ "$(ls "$texts"/eval/*.txt | wc -l)" -gt 1 ] && echo '\* ' || echo ''))" "$out/shown"
    scored="$scored $rows_of"
}

# cell MODEL COLUMN FILE..: of the last row of a model, over all texts where there are several; "" when there is none.
cell() {
    cell_model=$1 cell_column=$2
    shift 2
    awk -F '\t' -v model="$cell_model.gguf" -v column="$cell_column" '
        /^#/ {next}
        $1 == "date" {split("", at); for (n = 1; n <= NF; n++) at[$n] = n; next}
        $at["model"] == model && ($at["text"] == "*" || value == "") {value = $at[column]}
        END {print value == "-" ? "" : value}' "$@"
}

rows() { for each in $scored; do printf '%s ' "$out/rows-$each.tsv"; done; }
# shellcheck disable=SC2046  # the files of rows
value() { cell "$1" "$2" $(rows); }

# speed NAME SELECT MODEL...: decodes with them and with the dense model in turn, so that a slow minute falls on all.
speed() {
    speed_of=$1 select=$2 files=""
    shift 2
    for each; do
        if has "$each"; then files="$files $out/$each.gguf"; fi
    done
    [ -n "$files" ] || return 1
    # shellcheck disable=SC2086  # a list of files
    run deadwood score -m "$out/dense.gguf" $files --select "$select" --speed-only --speed-prefill 0 --speed-rounds $rounds \
        -o "$out/speed-$speed_of.tsv" -q >"$out/shown"
    speed_ok=$?
    [ $speed_ok != 0 ] || timed="$timed $speed_of"
    grep -E '^(\$|\()' "$out/shown"
    return $speed_ok
}

# gain NAME MODEL: its speed of decoding, the dense model's in the same rounds being 1.
gain() {
    [ -s "$out/speed-$1.tsv" ] || return 0
    awk -v a="$(cell "$2" decode_tok_s "$out/speed-$1.tsv")" -v b="$(cell dense decode_tok_s "$out/speed-$1.tsv")" \
        'BEGIN {if (a > 0 && b > 0) printf "%.2f", a / b}'
}
# at_speed NAME MODEL: the same in words.
at_speed() {
    at_gain=$(gain "$1" "$2")
    case $(disturbed "$1" "$2") in '' | no) at_note= ;; *) at_note=' (disturbed)' ;; esac
    printf '%s' "${at_gain:+at $at_gain of the dense speed$at_note}"
    [ -n "$at_gain" ] || printf 'at a speed that was not measured'
}
# disturbed NAME MODEL: what disturbed these rounds, or "no".
disturbed() {
    [ -s "$out/speed-$1.tsv" ] || return 0
    for each in dense "$2"; do cell "$each" disturbed "$out/speed-$1.tsv"; done | sort -u | grep -vx no || echo no
}

percent() { awk -v x="$1" 'BEGIN {printf "%.1f %%", 100 * x}'; }
# costs MODEL: of perplexity, with its standard error where there is one.
costs() {
    awk -v r="$(value "$1" ln_ratio)" -v se="$(value "$1" ln_ratio_se)" 'BEGIN {
        if (r == "") printf "(unknown)"
        else if (se == "") printf "%+.1f %%", 100 * (exp(r) - 1)
        else printf "%+.1f ± %.1f %%", 100 * (exp(r) - 1), 100 * exp(r) * se}'
}
factor() { awk -v r="$(value "$1" ln_ratio)" 'BEGIN {if (r == "") printf "(unknown)"; else printf "%.3g", exp(r)}'; }

hear() {
    for each; do
        has "$each" || continue
        printf '\n%-14s ' "$each:"
        deadwood generate -m "$out/$each.gguf" -p "$prompt" -n 30 --temp 0 -q 2>&1 | tr '\n' ' '
    done
    echo
}

# ---- the model

# take MODEL NAME: $out/NAME.gguf is the file (by a link), all parts of a split one in one file, or the folder converted.
take() {
    case $1 in
    *-00001-of-[0-9]*.gguf)
        printf '* keep\n' >"$out/keep.recipe"
        run deadwood requant -m "$1" -o "$out/$2.gguf" --recipe "$out/keep.recipe" -q ;;
    *)
        if [ -d "$1" ]; then
            run deadwood convert "$1" -o "$out/$2.gguf" -q
        else
            ln -sf "$(path_of "$1")" "$out/$2.gguf.part" && mv -f "$out/$2.gguf.part" "$out/$2.gguf" && : >"$out/made/$2.gguf"
        fi ;;
    esac
}

heading "The model as it is"
take "$model" dense || fail "cannot use '$model': $why"
source="" # the model in 16 bits, for whatever is rounded
if [ -n "${SOURCE:-}" ]; then
    take "$SOURCE" source || fail "cannot use SOURCE '$SOURCE': $why"
    source=$out/source.gguf
fi
deadwood inspect "$out/dense.gguf" --tensors >"$out/tensors.tsv" 2>"$out/said" && deadwood inspect "$out/dense.gguf" >"$out/facts" ||
    fail "cannot use '$model': $(tail -n 1 "$out/said")"

# Formats and shapes decide what can be cut in which groups and rounded in which way.
eval "$(awk -F '\t' '
    function block(type) {return type ~ /^(F32|F16|BF16)$/ ? 1 : type ~ /_K$/ ? 256 : 32}
    $1 ~ /^blk\..*\.(ffn_down|ffn_up)\.weight$/ {split($3, shape, "x")}
    $1 ~ /ffn_down\.weight$/ {
        for (g = 256; g > 1; g /= 2) if (shape[2] % g) fits[g] = "no"
        if (block($2) > most) most = block($2)
        if (shape[2] > widest) widest = shape[2]
        n_layer++
    }
    $1 ~ /ffn_up\.weight$/ {n[$2]++; n_embd = shape[2]}
    END {
        for (t in n) if (n[t] > n[type]) type = t
        group = !fits[64] ? 64 : !fits[32] ? 32 : 1
        if (most > group && !fits[most]) group = most
        printf "type=%s group=%d block=%d n_ff=%d n_embd=%d n_layer=%d gated=%s\n", type, group, most, widest, n_embd, n_layer, type == "" ? "yes" : "no"
    }' "$out/tensors.tsv")"
ctx=$(awk '$1 == "context" {print ($2 < 512 ? $2 : 512)}' "$out/facts")
[ -n "$type" ] || fail "'$model' has no layers with matrices ffn_up and ffn_down in a form that can be cut"
case $type in
F32 | F16 | BF16) bits=16 ;;
*) bits=$(printf '%s' "$type" | tr -dc '0-9' | cut -c 1) ;;
esac
again="" down_type="" # options for what was rounded before
[ "$bits" = 16 ] || [ -n "$source" ] || again=--lossy-twice
[ "$block" -le 1 ] || down_type="--down-type Q8_0"
group_down=$down_type
[ $((group % block)) != 0 ] || group_down=""

echo "The FFN's matrices are $type; $n_layer layers of at most $n_ff neurons."
[ "$group" = 64 ] || echo "Attempt 3 cuts groups of $group instead of 64: $([ "$group" -gt 64 ] && echo "$type has blocks of $block" || echo "64 does not divide the width $n_ff")."
[ -z "$down_type" ] || echo "Single neurons do not fill blocks of $block: where they are cut, down is encoded again as Q8_0."
[ -z "$again" ] || echo "The model is rounded already and attempt 4 rounds it again; SOURCE=FOLDER|M.gguf, the same model in 16 bits, avoids that."
[ $((n_ff % 64 + n_embd % 64)) = 0 ] || echo "Attempt 4 leaves out rounding in groups of 64 (affine): rows of $n_ff or $n_embd values are no whole number of groups."

# ---- what it will take, before it takes it

# Two short measurements: speeds, and one window compared with the base.
announce() {
    first=$(ls "$texts"/eval/*.txt | head -n 1)
    rm -f "$out/first.tsv"
    deadwood score -m "$out/dense.gguf" --speed-only --speed-prefill 128 --speed-decode 8 --speed-rounds 1 -o "$out/first.tsv" -q \
        >/dev/null 2>"$out/said" || fail "cannot run '$model': $(tail -n 1 "$out/said")"
    start=$(date +%s.%N)
    deadwood score -m "$out/dense.gguf" --base "$out/dense.gguf" -f "$first" -c "$ctx" --windows 1 --no-speed -q >/dev/null 2>"$out/said" ||
        fail "cannot score '$first': $(tail -n 1 "$out/said")" "$needs"
    awk -v wall="$(echo "$start $(date +%s.%N)" | awk '{print $2 - $1}')" -v model="$(wc -c <"$out/dense.gguf")" \
        -v scored="$(cat "$texts"/eval/*.txt | wc -c)" -v calib="$(cat "$texts"/calib/*.txt | wc -c)" -v ctx="$ctx" \
        -v windows="$windows" -v n_eval="$(ls "$texts"/eval/*.txt | wc -l)" -v n_calib="$(ls "$texts"/calib/*.txt | wc -l)" \
        -v prefill="$(cell dense prefill_tok_s "$out/first.tsv")" -v decode="$(cell dense decode_tok_s "$out/first.tsv")" \
        -v rounds=$rounds -v n_ff="$n_ff" -v n_embd="$n_embd" -v n_layer="$n_layer" -v traced=$trace_tokens -v epochs=$epochs \
        -v heal="$([ "$bits" = 16 ] && echo "$heal" || echo 0)" -v bits="$bits" -v stored="$([ "$type" = F32 ] && echo 32 || echo "$bits")" \
        -v is_folder="$([ -d "$model" ] && echo 1 || echo 0)" -v source="$([ -z "$source" ] || { [ -d "$SOURCE" ] && echo 2 || echo 1; })" \
        -v has_q8_down="$([ -z "$down_type" ] || echo 1)" -v out="$out" -v estimate="$out/estimate" '
        function size(bytes) {return bytes < 1e9 ? sprintf("%.0f MB", bytes / 1e6) : sprintf("%.1f GB", bytes / 1e9)}
        function least(a, b) {return a < b ? a : b}
        function most(a, b) {return a > b ? a : b}
        # Bytes that stay and, in peak, those that are there at once.
        function disk(down, learnt, statistics, traces, files) {
            down = least(n_layer * n_ff * n_embd * stored / 8 / model, 1 / 3)        # its share of the file
            files = is_folder + (source == 2) * 16 / stored
            files += 5 * (1 + down)                                                  # gated and predicted: down twice
            files += 5 - 1.2 * 3 * down + has_q8_down * 5 * down * (8.5 / stored - 1) # three cut by 20 %, two by 30 %
            files += 26 / stored                                                     # five rounded ones, 5.2 bits on average
            learnt = (heal > 0) * (1 - 0.9 * down)
            statistics = 800 * n_layer * n_ff * (source ? 2 : 1)
            traces = traced * n_layer * (2 * n_embd + 2.125 * n_ff)                  # stored in 0.83 of that, with all of it reserved
            peak = (is_folder + 4 * (1 + down)) * model + statistics + traces
            files = (files + learnt) * model + statistics + 0.85 * traces
            peak = most(peak, files + (heal > 2) * (1 + (heal > 4)) * learnt * model * 128 / stored) # a checkpoint every 2 minutes
            return files
        }
        BEGIN {
            scored /= 3.5; calib /= 3.5 # characters a token
            if (windows != "") {
                w = split(windows, range, "-") > 1 ? range[2] - range[1] + 1 : range[1]
                scored = least(scored, ctx * n_eval * w); calib = least(calib, ctx * n_calib * w)
            }
            traced = least(traced, calib)
            continued = 240 / decode # five prompts, 48 tokens
            token = (wall - 2 * continued - 0.1) / (2 * ctx)
            if (token < 1 / prefill) token = 1 / prefill
            seconds = 21 * (scored * token + continued)                                  # 16 models and the base five times
            seconds += calib / prefill * 1.3 + traced / prefill                          # statistics, traces
            seconds += 6 * n_layer * traced * epochs * (n_embd + n_ff) * n_embd / 6 / 2e10   # predictors
            seconds += 60 * heal
            seconds += 13 * (rounds + 1) * 64 / decode + 7 * 30 / decode                 # decoding in turn, and what they say
            seconds += 15 * model / 2.5e8 * (bits == 16 ? 1 : 16 / bits) + 12            # files: written, compared, rounded
            bytes = disk()
            at_times = ""
            if (peak > 1.05 * bytes) at_times = " (at times " size(peak) ")"
            printf "It will take about %.0f minute%s, %s of disk in %s%s and up to %s of memory (several models run side by side).\n",
                seconds / 60 + 0.5, seconds < 60 ? "" : "s", size(bytes), out, at_times, size(6 * model + 1e9)
            if (seconds > 3600 && windows == "") print "WINDOWS=1-4 shortens it."
            print seconds >estimate; print peak / 1024 >estimate
        }'
}
announce
needed=$(sed -n 2p "$out/estimate") free=$(df -Pk "$out" | awk 'NR == 2 {print $4 + 0}')
used=$(du -sk "$out" | awk '{print $1}')
is "$needed > $free + $used" && fail "$out has too little room: about $(awk "BEGIN {printf \"%.1f\", $needed * 1.024e-6}") GB are needed; give OUT=DIR on another disk"

score dense '' dense || fail "cannot score '$model': $why" "$needs"
say "What its neurons do, on texts that are not the ones it is scored on:"
# As many windows of each calibration text, or all of the shortest one.
calib_windows=""
[ -z "$windows" ] || calib_windows=$(echo "$windows" | awk -F - '{print (NF > 1 ? $2 - $1 + 1 : $1)}')
collect() {
    run deadwood collect -m "$out/dense.gguf" -f "$texts"/calib/*.txt -c "$ctx" ${calib_windows:+--windows "$calib_windows"} \
        -o "$out/stats.h5" -q
}
if ! collect; then
    shortest=$(printf '%s' "$why" | sed -n "s/.*windows .* are wanted, but .* has \([1-9][0-9]*\)\$/\1/p")
    [ -n "$shortest" ] || fail "cannot collect statistics: $why" "$needs"
    skipped="" calib_windows=$shortest
    collect || fail "cannot collect statistics: $why" "$needs"
fi

# ---- the attempts

skip_at_run_time() {
    heading "Attempt 1: skip at run time the neurons that a token leaves inactive"
    for activity in 0.9 0.8 0.7 0.5; do
        run deadwood gate -m "$out/dense.gguf" -s "$out/stats.h5" -o "$out/gated-$activity.gguf" --rule cats --activity $activity \
            ${source:+--source "$source"} -q
    done
    score gated '--select fused' gated-0.9 gated-0.8 gated-0.7 gated-0.5 || return
    gated="" # the sparsest that costs at most 2 % of perplexity, else the first
    for each in gated-0.9 gated-0.8 gated-0.7 gated-0.5; do
        has $each || continue
        [ -n "$gated" ] || gated=$each
        if is "$(value $each ln_ratio) <= log(1.02)"; then gated=$each; fi
    done
    speed gated fused gated-0.9 gated-0.8 gated-0.7 gated-0.5
    speed listed listed "$gated"
    if is "$(value "$gated" ln_ratio) <= log(1.02)"; then
        found="The sparsest that costs at most 2 % on these texts, by which it is chosen, is $gated"
    else
        found="None costs at most 2 %; $gated costs $(costs "$gated")"
    fi
    say "$found: it computes $(percent "$(value "$gated" coverage)") of the neurons." \
        "Decoding runs $(at_speed listed "$gated") where the open neurons are listed and gathered, and" \
        "$(at_speed gated "$gated") where gate, test, up and down are one walk." \
        "All of the gate must be computed to know what to skip, so even without any overhead at most" \
        "$(awk -v c="$(value "$gated" coverage)" 'BEGIN {printf "%.0f %%", 100 * (1 - c) * 2 / 3}') of the FFN could be saved."
}

predict() {
    heading "Attempt 2: predict with small networks which neurons a token needs"
    if [ -z "$gated" ]; then
        echo "(skipped: it predicts the decisions of attempt 1, which made no model)"
        return
    fi
    trace_windows=""
    [ -z "$calib_windows" ] || trace_windows="--windows $calib_windows"
    # shellcheck disable=SC2086  # an option and its value
    run deadwood trace -m "$out/$gated.gguf" -f "$texts"/calib/*.txt -c $((ctx / 2)) --tokens $trace_tokens \
        -o "$out/traces.h5" -q || return
    run deadwood train -m "$out/$gated.gguf" -x "$out/traces.h5" --epochs $epochs -o "$out/predicted.gguf" \
        --report "$out/predictors.tsv" -q || return
    score predicted '--select fused' predicted || return
    speed predicted fused predicted
    say "The predictors open $(percent "$(value predicted coverage)") of the neurons, cost $(costs predicted) of perplexity and" \
        "decode $(at_speed predicted predicted).  Accuracy says little: 'never' closes everything, and 'static'" \
        "opens always the same neurons without a network; the table above shows what both reach."
}

# cut_by NAME METRIC RATE GROUP OPTIONS: ranks and cuts.
cut_by() {
    run deadwood rank -m "$out/dense.gguf" -s "$out/stats.h5" -o "$out/$1.tsv" --metric "$2" --rate "$3" --group "$4" -q || return
    # shellcheck disable=SC2086  # options are several words
    run deadwood cut -m "$out/dense.gguf" -p "$out/$1.tsv" -o "$out/$1.gguf" $5 ${5:+${source:+--source "$source"}} -q
}

cut_for_good() {
    heading "Attempt 3: cut neurons for good"
    for rate in 0.2 0.3; do
        for metric in activation random; do
            cut_by $metric-$rate $metric $rate "$group" "$group_down"
        done
    done
    cut_by single-0.2 activation 0.2 1 "$down_type"
    score cut '' activation-0.2 random-0.2 single-0.2 activation-0.3 random-0.3 || return
    speed cut auto activation-0.2 random-0.2 single-0.2 activation-0.3 random-0.3
    say "At 20 % (reached: $(percent "$(value activation-0.2 rate_reached)")) groups of $group chosen by mean activation cost" \
        "$(costs activation-0.2) of perplexity, random groups $(costs random-0.2), and neurons chosen one by one $(costs single-0.2)."
}

# round NAME MODEL HOW...: requantizes; HOW are the options that say to what.
round() {
    rounded=$1 from=$2 lossy=$again
    shift 2
    [ "$from" = "$out/dense.gguf" ] || lossy=--lossy-twice
    if [ -n "$source" ] && [ "$from" = "$out/dense.gguf" ]; then from=$source; fi
    # shellcheck disable=SC2086  # an option or nothing
    run deadwood requant -m "$from" -o "$out/$rounded.gguf" "$@" $lossy -q
}

requantize() {
    heading "Attempt 4: requantize"
    if [ $((n_ff % 64 + n_embd % 64)) = 0 ] && [ "$bits" -gt 4 ]; then
        round q4 "$out/dense.gguf" --type affine4 && round q4-q2 "$out/q4.gguf" --type affine2
        round q2 "$out/dense.gguf" --type affine2
    elif [ $((n_ff % 64 + n_embd % 64)) = 0 ]; then
        # The model itself is what the detour over 4 bits ends with.
        run deadwood requant -m "$out/dense.gguf" -o "$out/q4-q2.gguf" --type affine2 --lossy-twice -q
        if [ -n "$source" ]; then round q2 "$out/dense.gguf" --type affine2; fi
    fi
    round q2_k "$out/dense.gguf" --mixture Q2_K -s "$stats"
    round q4_k_m "$out/dense.gguf" --mixture Q4_K_M -s "$stats"
    score requant '' q4 q4-q2 q2 q2_k q4_k_m || return
    if has q2; then said="Two bits by round-to-nearest multiply perplexity by $(factor q2)"; else said="Two bits by round-to-nearest"; fi
    if has q2 && has q4-q2; then said="$said; after four bits, by $(factor q4-q2)."
    elif has q4-q2; then said="$said after the model's own $type multiply perplexity by $(factor q4-q2)."
    else said=""; fi
    has q2_k || return
    say "${said:+$said  }The mixture Q2_K, with scales of scales and weighted by the inputs' energy: by $(factor q2_k)."
}

# Two windows a step, or one if twenty steps would not fit into the minutes: a step runs both models forward and one
# backward, which takes the time of about six forward passes.
heal_batch() {
    awk -v minutes="$heal" -v prefill="$(cell dense prefill_tok_s "$out/first.tsv")" -v n="$((ctx / 2))" \
        'BEGIN { print (60 * minutes * prefill < 6 * 20 * 2 * n ? 1 : 2) }'
}

learn_again() {
    heading "Attempt 5: let the cut model learn from the original"
    if is "$heal == 0"; then echo "(skipped: HEAL=$heal)" && return; fi
    if [ "$bits" != 16 ]; then
        echo "(skipped: a model learns in 16 or 32 bits, and the matrices are $type; cut and heal a 16-bit file, then round it)"
        return
    fi
    if ! has activation-0.3; then echo "(skipped: attempt 3 made no model to heal)" && return; fi
    run deadwood heal -m "$out/activation-0.3.gguf" -T "$out/dense.gguf" -f "$texts"/calib/*.txt -c $((ctx / 2)) \
        --minutes "$heal" --batch "$(heal_batch)" --held-out "$(ls "$texts"/calib/*.txt | wc -l)" -o "$out/healed-0.3.gguf" || return
    score healed '' healed-0.3 || return
    say "Cut by 30 %, the model cost $(costs activation-0.3) of perplexity.  After $(value healed-0.3 tokens_trained) tokens in" \
        "$(value healed-0.3 minutes_trained) minutes it costs $(costs healed-0.3), at the same size and speed.  A better cut" \
        "(rank --metric obs, cut --repair lsq), more text and more time all help."
}

gated="" stats=$out/stats.h5
skip_at_run_time
predict
cut_for_good
if [ -n "$source" ]; then
    # Importances belong to the file that they were collected on.
    run deadwood collect -m "$source" -f "$texts"/calib/*.txt -c "$ctx" ${calib_windows:+--windows "$calib_windows"} -o "$out/source.h5" -q
    stats=$out/source.h5
fi
requantize
learn_again

heading "What they say"
hear dense "$gated" predicted activation-0.2 activation-0.3 healed-0.3 q4-q2 q2_k

# ---- the tables

# The rows, with each model's speed of decoding beside the dense one's in the same rounds.  Speeds of different attempts were
# taken minutes apart and are not compared with each other, so absolute ones are left out.
heading "All of it"
{
    for each in $timed; do
        for other in $(awk '!/^#/ && $1 != "date" {sub(/\.gguf$/, "", $4); print $4}' FS='\t' "$out/speed-$each.tsv"); do
            [ "$other" = dense ] || [ "$each" = listed ] || printf '%s\t%s\t%s\t%s\n' "$other.gguf" "$(gain $each "$other")" \
                "$(cell "$other" peak_rss_bytes "$out/speed-$each.tsv")" "$(disturbed $each "$other" | tr '\n' ' ')"
        done
    done
    printf 'dense.gguf\t1\t%s\tno\n' "$(cell dense peak_rss_bytes "$out/first.tsv")"
} >"$out/gains.tsv"
# shellcheck disable=SC2046  # the files of rows
awk -F '\t' -v OFS='\t' '
    FNR == 1 {n_file++}
    n_file == 1 {if ($2 != "") {gain[$1] = $2; peak[$1] = $3; state[$1] = $4}; next}
    /^#/ {if (!head) print; next}
    $1 == "date" {split("", at); for (n = 1; n <= NF; n++) at[$n] = n; if (!head) print $0, "decode_gain"; head = 1; next}
    {if (peak[$at["model"]] != "") {$at["peak_rss_bytes"] = peak[$at["model"]]; $at["disturbed"] = state[$at["model"]]}
     print $0, gain[$at["model"]] == "" ? "-" : gain[$at["model"]]}' "$out/gains.tsv" $(rows) >"$out/rows.tsv.part" &&
    mv "$out/rows.tsv.part" "$out/rows.tsv"
# A line for each text that is scored and each calibration text that has parts of it, whatever was made with that one.
leaks=$(awk -F '\t' '
    $1 == "date" {for (n = 1; n <= NF; n++) at[$n] = n; next}
    /^#/ || $at["text"] == "*" || $at["leak"] == "no" || $at["leak"] == "-" {next}
    {leak = $at["leak"]; sub(/ of step [^ ]*/, "", leak); print "- \047" $at["text"] "\047 is scored, and " leak}' "$out/rows.tsv" | sort -u)
verdict=""
[ -z "$leaks" ] || verdict=,verdict
plot=""
[ "$(grep -vc '^#' "$out/rows.tsv")" -lt 3 ] || plot="--plot $out/plot.svg"
# shellcheck disable=SC2086  # an option and its value
run deadwood table "$out/rows.tsv" -o "$out/table.md" -q $plot \
    --columns model,rate_reached,file_bytes,peak_rss_bytes,decode_gain,ppl,ln_ratio,kl_mean,top1_agree,coverage$verdict
cat "$out/table.md"

# "cut 20 % in groups", and what was reached where blocks allow nothing near.
cut_name() {
    awk -v wanted="$1" -v reached="$(value "activation-0.$1" rate_reached)" 'BEGIN {
        printf "3 cut %d0 %% in groups", wanted
        if (reached != "" && (reached - wanted / 10 > 0.03 || wanted / 10 - reached > 0.03)) printf " (reached: %.0f %%)", 100 * reached}'
}

# line ATTEMPT BEFORE AFTER SAID MODEL SPEEDS: what the post measured, and what came out here; SPEEDS names the rounds.
line() {
    speed=$(gain "$6" "$5")
    [ -z "$speed" ] || [ "$(disturbed "$6" "$5")" = no ] || speed="$speed !"
    awk -v what="$1" -v before="$2" -v after="$3" -v said="$4" -v speed="$speed" -v ln="$(value "$5" ln_ratio)" -v mb="$(value "$5" file_bytes)" 'BEGIN {
        post = after == "-" ? "-" : sprintf("%s -> %s: %+.1f %%", before, after, 100 * (after / before - 1))
        if (ln == "") {printf "| %s | %s | %s | not made | - | - |\n", what, post, said; exit}
        printf "| %s | %s | %s | %.2f | %s | x %.3g |\n", what, post, said, mb / 1e6, speed == "" ? "-" : "x " speed, exp(ln)}'
}

heading "Beside the post that it retells"
{
    echo "| attempt | the post, tokens a second | the post says | MB here | decoding here, dense = 1 | perplexity here |"
    echo "|:--|:--|:--|--:|--:|--:|"
    line "1 skip inactive neurons, listed" 70 70 "the overhead ate the gain" "${gated:-gated-0.9}" listed
    line "1 in one walk" - - "-" "${gated:-gated-0.9}" gated
    line "2 predict them" 70 71 "89 % accuracy" predicted predicted
    line "$(cut_name 2)" 69.8 79.9 "+16 %; 4.2 -> 3.6 GB; text noticeably worse" activation-0.2 cut
    line "$(cut_name 3)" 69.8 87.9 "+28 %; 4.2 -> 3.3 GB; text noticeably worse" activation-0.3 cut
    line "4 two bits after four" - - "word garbage" q4-q2 -
    line "5 cut 30 %, then learn from the original" - - "its wish for next time" healed-0.3 -
} | tee "$out/story.md"
say "The post is \"How I Made an AI Model Faster on My MacBook - And What Went Wrong\" on the blog One Man and His Droids," \
    "https://onemanandhisdroids.de/en/how-i-made-an-ai-model-faster-on-my-macbook-and-what-went-wrong: a 7B model in 4 bits (MLX) on" \
    "an M1 Max.  Its percentages are computed here from its own speeds; where they differ from what it says, both stand there." \
    "A small model stays in the processor's cache: what skipped bytes are worth on a large one is in results/README.md."
[ -z "$leaks" ] || { say "Caution: models were made with text that they are scored on, so their quality is too good:" && echo "$leaks"; }
[ -z "$skipped" ] || printf '\nWhat could not be made here, and why:%s\n' "$skipped"
say "The table is $out/table.md, the plot $out/plot.svg; every column is in $out/rows.tsv (deadwood score --columns says what each" \
    "means).  How a file came to be: deadwood inspect $out/q2_k.gguf --lineage"
awk -v took=$(($(date +%s) - began)) -v said="$(head -n 1 "$out/estimate")" -v kb="$(du -sk "$out" | awk '{print $1}')" \
    'BEGIN {printf "\nIt took %.1f minutes (%.1f were expected) and %.0f MB.\n", took / 60, said / 60, kb * 1.024e-3}'
