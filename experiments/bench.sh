#!/bin/sh
# bench.sh - what `make bench` and `make bench-quick` run: the cells of experiments/bench.cells, this engine beside upstream
# llama.cpp, into results/speed-LEVEL.tsv and .md, of this machine's best level; quick: the small models with few pairs, to
# the terminal only.
#
# DW_STOCK names the folder of upstream's libraries; T=N threads; CELLS='NAME..' measures only these.  Models of random
# weights and rows are in build/bench: interrupted, the same command goes on with the cells that have no row of this
# commit.  Rows of another T or of other libraries are in a folder of their own.  A dirty tree is refused unless
# DIRTY=1; its rows are measured anew each time.
set -eu
cd "$(dirname "$0")/.."
mode=${1:-full}
[ "$mode" = quick ] || . experiments/clean_tree.sh
PATH="$PWD/build:$PATH"
: "${DW_STOCK:=}"
if ! ls "$DW_STOCK"/libllama*.so* >/dev/null 2>&1; then
    echo "bench: DW_STOCK names no folder with upstream's libllama*.so; get it: build/deadwood versus --fetch build/stock, then give DW_STOCK=build/stock/package/bins/linux-x64" >&2
    exit 1
fi
export DW_STOCK
threads=${T:+-t $T}
commit=$(git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo -) # as programs have it (Makefile)
out=build/bench
libraries=$(cat "$DW_STOCK"/*.so* | cksum | cut -d ' ' -f 1)
rows=$out/rows-$mode-${T:-all}-$libraries # all: every processor
mkdir -p "$rows" "$out/models"

# said WORDS..: a line for the reader, with the time since the start
began=$(date +%s)
said() {
    now=$(($(date +%s) - began))
    printf 'bench: %d:%02d  %s\n' $((now / 60)) $((now % 60)) "$*" >&2
}

# model NAME: the file of SHAPE-TYPE in $file, made when it is not there
model() {
    file=$out/models/$1.gguf
    [ ! -f "$file" ] || return 0
    type=$(echo "${1#*-}" | tr a-z A-Z)
    case ${1%%-*} in
    7b) shape='--shape qwen2.5-7b' && said "making $file (4.3 GB in 4 bits; kept for the next time)" ;;
    7b4) shape='--shape qwen2.5-7b --layers 4' ;;
    7b2) shape='--shape qwen2.5-7b --layers 2' ;;
    *) shape="--shape ${1%%-*}" ;;
    esac
    # shellcheck disable=SC2086  # words
    deadwood synth $shape --type "$type" -o "$file" -q
}

# wall: GB/s of the best read, measured at most a minute before, in $wall; the level of this machine in $best
walled=0
wall() {
    [ $(($(date +%s) - walled)) -ge 60 ] || return 0
    # shellcheck disable=SC2086
    deadwood limits --what wall --repeats 3 $threads >"$out/wall.tsv" || return 1
    wall=$(awk -F '\t' '$1 == "wall" {print $4}' "$out/wall.tsv")
    best=$(sed -n 's/^# .*kernels \([^,]*\),.*/\1/p' "$out/wall.tsv")
    walled=$(date +%s)
}

# most NUMBER..: the largest; one reading of a shared machine may be low
most() { printf '%s\n' "$@" | awk '$1 + 0 > m {m = $1 + 0} END {print m}'; }

# row NAME=VALUE..: a table of one row
row() {
    printf '%s\n' "$@" | awk -F = '{name = name sep $1; value = value sep substr($0, length($1) + 2); sep = "\t"} END {print name; print value}'
}
value() { awk -F '\t' -v name="$2" 'NR == 1 {for (i = 1; i <= NF; i++) if ($i == name) at = i} END {print at ? $at : "-"}' "$1"; } # of the last row
place() { row "date=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "machine=$(awk -F ': ' '/^model name/ {print $2; exit}' /proc/cpuinfo), $(getconf _NPROCESSORS_ONLN)" "commit=$commit" "$@"; }

# ---- kinds of cells: each writes a table whose last row is the cell's; what it is judged by is in $ratio and $share.
# They are called in a condition, where the shell does not end at a failure: hence "|| return 1".

# readings ROW: of memory around the row, GB/s.  The share is divided by the best of those before and after, `of`.  What the
# row itself read, and reading beside its laps, only say whether memory moved.
readings() {
    before=$(value "$1" read_gb_s_before) after=$(value "$1" read_gb_s_after) beside=$(value "$1" lap_read_gb_s)
    of=$(most "$wall" "$before" "$after")
    fastest=$(most "$of" "$beside" "$(value "$1" own_gb_s)")
    slowest=$(printf '%s\n' "$wall" "$before" "$after" "$beside" | sort -g | grep -v '^-$' | head -1)
}
# A share of the wall says little where memory was slower or faster in the row than when the wall was read.  So a row with a
# bound of its share is measured again then, whatever its result; the last time counts.
memory_moved() { awk -v slowest="$slowest" -v fastest="$fastest" 'BEGIN {exit !(slowest < 0.85 * fastest)}'; }
# Three times in all, of the long ones two; so that the table takes half an hour, none after 26 minutes.
may_repeat() { [ "$want_share" != - ] && [ "$tries" -lt $((pairs > 5 ? 2 : 3)) ] && [ $(($(date +%s) - began)) -lt 1560 ]; }

versus_cell() {
    model "$model" || return 1
    own=$file
    trial=''
    case $model in 7b-*) model "7b4-${model#7b-}" && trial="--try $file" || return 1 ;; esac
    reads=no # of memory: the other models fit into caches
    case $model-$work-$busy in 7b*-decode-0) reads=yes ;; esac
    lap=''
    [ "$level" = best ] || lap="--level $level"
    [ "$precision" = - ] || lap="$lap --precision $precision"
    hugetlb=0 # of upstream's memory, by glibc
    [ "$pages" != huge ] || { lap="$lap --huge-pages" hugetlb=1; }
    tries=0
    while :; do
        tries=$((tries + 1))
        [ $reads = no ] || wall || return 1
        # shellcheck disable=SC2086
        GLIBC_TUNABLES=glibc.malloc.hugetlb=$hugetlb deadwood versus -m "$own" --what "$work" --depth "$depth" --sequences "$seq" --compete "$busy" --pairs "$pairs" --seconds "$seconds" $lap $trial $threads >"$1" || return 1
        [ $reads = yes ] || break
        readings "$1"
        memory_moved && may_repeat || break
        said "$cell: memory read $slowest to $fastest GB/s meanwhile; again"
        walled=0
    done
    ratio=$(value "$1" ratio)
    if [ "$busy" -gt 0 ]; then share=$(value "$1" own_kept)
    elif [ $reads = yes ]; then
        share=$(awk -v a="$(value "$1" own_gb_s)" -v b="$of" 'BEGIN {printf "%.3f", a / b}')
        awk -v tries="$tries" 'BEGIN {FS = OFS = "\t"} {print $0, NR == 1 ? "tries" : tries}' "$1" >"$out/tried.tsv" && mv "$out/tried.tsv" "$1"
    fi
    case $model in 7b4-*) [ "$model" = 7b4-q4_0 ] || [ "$model" = 7b4-q4_k ] || rm -f "$own" ;; esac
}

# has CELL: it was measured at this commit
has() { [ -f "$rows/$1.tsv" ] && [ "$(value "$rows/$1.tsv" commit)" = "$commit" ]; }
needs() { has "$1" || { said "$cell needs the cell $1" && return 1; }; }

fill_cell() {
    from=$rows/$work.tsv
    needs "$work" || return 1
    own=$(value "$from" own_fill_tok_s)
    theirs=$(value "$from" stock_fill_tok_s)
    [ "$own" != - ] || return 1
    ratio=$(awk -v a="$own" -v b="$theirs" 'BEGIN {printf "%.4f", a / b}')
    place "model=$(value "$from" model)" "work=prefill" "lap=$depth" "pairs=1" "own_tok_s=$own" "stock_tok_s=$theirs" "ratio=$ratio" "own_kernels=$(value "$from" own_kernels)" "stock_version=$(value "$from" stock_version)" "stock_setting=$(value "$from" stock_setting)" >"$1"
}

sparse_cell() {
    case $model in 7b) shape='-l 4' ;; *) shape='-l 12 -e 512 -f 2048' ;; esac
    # shellcheck disable=SC2086
    build/bench_sparse $threads $shape -q "$work" -g 64 -s 50 -r "$pairs" >"$out/sparse.tsv" || return 1
    share=$(awk -F '\t' '$3 == "fused" {print $8}' "$out/sparse.tsv")
    place "model=$model" "work=gate, half closed, $work" "pairs=$pairs" "own_ms=$(awk -F '\t' '$3 == "fused" {print $4}' "$out/sparse.tsv")" "dense_ms=$(awk -F '\t' '$3 == "dense" {print $4}' "$out/sparse.tsv")" "own_kernels=$best" >"$1"
}

# The slowest of the kinds that choose among the likeliest.
sampling_cell() {
    needs "$work" && build/bench_sampler "$pairs" >"$out/sampler.tsv" || return 1
    us=$(awk -F '\t' 'NR > 2 && $2 > most {most = $2} END {print most}' "$out/sampler.tsv")
    share=$(awk -v us="$us" -v tok_s="$(value "$rows/$work.tsv" own_tok_s)" 'BEGIN {printf "%.4f", us * 1e-6 * tok_s}')
    place "model=$model" "work=sampling" "pairs=$pairs" "own_ms=$(awk -v us="$us" 'BEGIN {print us / 1e3}')" "own_kernels=$best" >"$1"
}

collect_cell() {
    model "$model" || return 1
    # shellcheck disable=SC2086
    build/bench_collect "$pairs" -m "$file" -f experiments/texts/calib/*.txt -c "$depth" -o "$out/unused.h5" -q $threads >"$out/collect.txt" || return 1
    share=$(sed -n 's/.*speed \([0-9.]*\) .*/\1/p' "$out/collect.txt")
    set -- "$1" "$(sed 's/.*\[\([0-9.]*\), \([0-9.]*\)\].*/\1 \2/' "$out/collect.txt")"
    place "model=$(basename "$file")" "work=collect" "lap=$depth" "pairs=$pairs" "share_low=${2% *}" "share_high=${2#* }" "own_kernels=$best" >"$1"
}

# The cell of the same work at the best level, when that is the wanted one.
twin_of() { awk -v n="$1" '/^#/ {next} {key = $2 $3 $4 $6 $7 $8 $9 $(NF - 1); if ($1 == n) mine = key; else if ($5 == "best" && !(key in at)) at[key] = $1} END {print at[mine]}' experiments/bench.cells; }
has_level() { case "$1 $best" in "best "* | "avx2 avx512" | "avx2 amx" | "avx512 amx" | "avx2 avx2" | "avx512 avx512" | "amx amx") ;; *) return 1 ;; esac; }
# CPUINFO is for tests.
has_bf16() { [ "$best" = amx ] || { [ "$best" = avx512 ] && grep -qw avx512_bf16 "${CPUINFO:-/proc/cpuinfo}"; }; }

# ---- all cells

wall
echo "bench: machine at level $best, memory at $wall GB/s, commit $commit" >&2
failed=''
todo=$out/cells-$mode
awk -v mode="$mode" -v only=" ${CELLS:-} " '/^#/ {next} mode == "quick" && $NF != "yes" {next} only != "  " && !index(only, " " $1 " ") {next} {print}' experiments/bench.cells >"$todo"
n_cells=$(wc -l <"$todo") i=0
while read -r cell kind model work level pages depth seq busy pairs seconds want_ratio want_share precision _ <&3; do
    i=$((i + 1)) ratio=- share=- reads=no of=-
    [ "$mode" = full ] || [ "$kind" != versus ] || { pairs=5 seconds=4; }
    to=$rows/$cell.tsv
    if [ "$precision" = bf16 ] && ! has_bf16; then said "$cell: this machine does not multiply BF16" && rm -f "$to" && continue; fi
    if ! has_level "$level"; then said "$cell: this machine lacks the level $level" && rm -f "$to" && continue; fi
    case $commit in *-dirty | -) ;; *) [ "$mode" = full ] && has "$cell" && said "$cell: is there" && continue ;; esac
    said "$cell ($i of $n_cells)"
    rm -f "$to"
    twin=''
    [ "$level" != "$best" ] || twin=$(twin_of "$cell")
    if [ -n "$twin" ] && has "$twin"; then
        cp "$rows/$twin.tsv" "$out/cell.tsv" && ratio=$(value "$out/cell.tsv" cell_ratio) share=$(value "$out/cell.tsv" cell_share)
        cut -f7- "$out/cell.tsv" >"$out/twin.tsv" && mv "$out/twin.tsv" "$out/cell.tsv" # without the twin's own six columns
    elif ! "${kind}_cell" "$out/cell.tsv"; then
        failed="$failed $cell"
        continue
    fi
    [ "$kind $reads" = 'versus yes' ] || of=-
    sed -n '1p;$p' "$out/cell.tsv" >"$out/row.tsv" # beside busy processes there is a row without them before it
    row "cell=$cell" "want_ratio=$want_ratio" "want_share=$want_share" "cell_ratio=$ratio" "cell_share=$share" "wall_gb_s=$of" | paste - "$out/row.tsv" >"$to.part"
    mv "$to.part" "$to"
done 3<"$todo"
rm -f "$out/unused.h5" "$out/cell.tsv" "$out/row.tsv"

# The rows as one table, in the order of the cells, with all columns that any of them has.
new=$out/new
rm -rf "$new" && mkdir -p "$new"
set --
while read -r cell _; do [ ! -f "$rows/$cell.tsv" ] || set -- "$@" "$rows/$cell.tsv"; done <"$todo"
[ $# -gt 0 ] || { echo "bench: nothing was measured" >&2; exit 1; }
awk -F '\t' -v OFS='\t' '
    FNR == 1 {for (i = 1; i <= NF; i++) {name[FILENAME, i] = $i; if (!($i in at)) {at[$i] = ++n; column[n] = $i}}; next}
    {rows++; for (i = 1; i <= NF; i++) cell[rows, name[FILENAME, i]] = $i}
    END {line = ""; for (c = 1; c <= n; c++) line = line (c > 1 ? OFS : "") column[c]; print line
         for (r = 1; r <= rows; r++) {line = ""; for (c = 1; c <= n; c++) line = line (c > 1 ? OFS : "") ((r, column[c]) in cell ? cell[r, column[c]] : "-"); print line}}
' "$@" >"$new/speed-$best.tsv"
awk -f experiments/bench.awk "$new/speed-$best.tsv" >"$new/speed-$best.md"
if [ "$mode" = quick ] || [ -n "${CELLS:-}$failed" ]; then cat "$new/speed-$best.md" # a part is no result
else mv -f "$new"/speed-* results/
fi
said "done"
[ -z "$failed" ] || { echo "bench: failed:$failed; the same command tries them again" >&2; exit 1; }
