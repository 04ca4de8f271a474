#!/bin/bash
# faults.sh - runs a command with its allocations and file operations failing one at a time.
#
#   tests/faults.sh OUTPUT PROGRAM ARGS...     OUTPUT: the file that the command makes; "-": only stdout
#
# Every run must either do its whole work all the same (same output: some failures need not matter), or end with exit
# status 1, exactly one line on stderr that begins with the program's name, no OUTPUT and no *.part file.  A signal or
# any other status is an error.  The places to fail come from build/faults.so (preload_faults.c): the first call of
# every distinct call stack, and the last.  FAULT_RUNS (60) bounds the runs of each kind, which then take places
# evenly; DW_SLOW takes all.  FAULT_KINDS (alloc io) restricts what fails.  Give the command -t 1 and -q.
set -u
output=$1
program=$2
shift 2
here=$(cd "$(dirname "$0")/.." && pwd)
faults=${BUILD:-$here/build}/faults.so
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
limit=${FAULT_RUNS:-60}
[ -z "${DW_SLOW:-}" ] || limit=1000000

remove_output() { [ "$output" = - ] || rm -rf "$output" "$output".*.part; }

# run VARIABLE VALUE ARGS...: the command with one failure; its exit status.
run() {
    local variable=$1 value=$2
    shift 2
    remove_output
    timeout -s KILL 120 env LD_PRELOAD="$faults" "$variable=$value" "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
}

# kept: what the run left, as one hash.
kept() { { cat "$work/out"; [ "$output" = - ] || cat "$output" 2>&1; } | sha256sum; }

if ! run FAULT_COUNT "$work/count" "$@"; then
    echo "faults: the command fails by itself: $(cat "$work/err")"
    exit 1
fi
good=$(kept)
n_runs=0 n_bad=0 n_failed=0

bad() {
    n_bad=$((n_bad + 1))
    echo "faults: $1 $2: $3"
    head -c 500 "$work/err" | head -n 5
}

check() {
    local kind=$1 n=$2 rc=$3
    n_runs=$((n_runs + 1))
    if [ "$rc" = 0 ]; then
        [ "$(kept)" = "$good" ] || bad "$kind" "$n" "exit status 0 with another output"
        return
    fi
    n_failed=$((n_failed + 1))
    [ "$rc" = 1 ] || bad "$kind" "$n" "exit status $rc"
    if [ "$(wc -l <"$work/err")" != 1 ] || ! grep -q "^$(basename "$program"): ." "$work/err"; then
        bad "$kind" "$n" "not exactly one line of the program's"
    fi
    [ "$output" = - ] && return
    [ -e "$output" ] && bad "$kind" "$n" "left '$output'"
    compgen -G "$output.*.part" >/dev/null && bad "$kind" "$n" "left a partial file"
}

for kind in ${FAULT_KINDS:-alloc io}; do
    variable=FAULT_${kind^^}
    total=$(sed -n "s/^total $kind //p" "$work/count")
    { sed -n "s/^$kind //p" "$work/count"; echo "$total"; } | sort -nu >"$work/places"
    n=$(wc -l <"$work/places")
    [ "$total" = 0 ] && continue
    awk -v n="$n" -v limit="$limit" 'n <= limit || int(NR * limit / n) > int((NR - 1) * limit / n)' "$work/places" >"$work/chosen"
    while read -r place; do
        run "$variable" "$place" "$@"
        check "$kind" "$place" $?
        [ "$n_bad" -lt 5 ] || break 2
    done <"$work/chosen"
    echo "$kind: $(wc -l <"$work/chosen") of $n places of $total calls"
done 2>&1
remove_output
echo "faults: $n_runs runs, $n_failed reported the failure, $n_bad wrong"
[ "$n_bad" = 0 ] && [ "$n_failed" -gt 0 ]
