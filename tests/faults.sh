#!/bin/bash
# faults.sh - runs a command with its allocations and file operations failing one at a time, interrupted in the middle,
# and on a full disk.
#
#   tests/faults.sh OUTPUT PROGRAM ARGS...     OUTPUT: the file that the command makes; "-": only stdout
#
#   alloc, io   the run does its whole work all the same (same output: some failures need not matter), or ends with exit
#               status 1, exactly one line on stderr that begins with the program's name, no OUTPUT and no partial file.
#   int         SIGINT at a file operation ends the run by that signal; what stands under OUTPUT's name is whole.
#   full        a disk of half OUTPUT's size: as a failure.  A tmpfs where one can be mounted, else a limit on files.
#
# The places come from build/faults.so (preload_faults.c): the first call of every distinct call stack, and the last.
# FAULT_RUNS (60) bounds the runs of each kind, which then take places evenly; DW_SLOW takes all.  OUTPUT.part, from
# which the same command goes on, may stay; OUTPUT too, if whole, where FAULT_MAY_STAY says that it is written before the
# end.  Give the command -t 1 and -q, and paths in the current folder.
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

remove_output() { [ "$output" = - ] || rm -rf "$output" "$output".*.part "$output.part"; }

# run VARIABLE VALUE ARGS...: the command with one failure; its exit status.
run() {
    local variable=$1 value=$2
    shift 2
    remove_output
    timeout -s KILL 120 env LD_PRELOAD="$faults" "$variable=$value" "$program" "$@" >"$work/out" 2>"$work/err" </dev/null
}

hash_of() { [ "$output" = - ] || [ ! -e "$output" ] || sha256sum <"$output"; }
# kept: what the run left, as one hash.
kept() { { cat "$work/out"; hash_of; } | sha256sum; }

if ! run FAULT_COUNT "$work/count" "$@"; then
    echo "faults: the command fails by itself: $(cat "$work/err")"
    exit 1
fi
good=$(kept)
whole=$(hash_of)
bytes=$([ "$output" = - ] && echo 0 || stat -c %s "$output")
n_runs=0 n_bad=0 n_failed=0

bad() {
    n_bad=$((n_bad + 1))
    echo "faults: $1 $2: $3"
    head -c 500 "$work/err" | head -n 5
}

check_failure() {
    local kind=$1 n=$2 rc=$3
    n_failed=$((n_failed + 1))
    [ "$rc" = 1 ] || bad "$kind" "$n" "exit status $rc"
    if [ "$(wc -l <"$work/err")" != 1 ] || ! grep -q "^$(basename "$program"): ." "$work/err"; then
        bad "$kind" "$n" "not exactly one line of the program's"
    fi
    [ "$output" = - ] && return
    [ -e "$output" ] && ! { [ -n "${FAULT_MAY_STAY:-}" ] && [ "$(hash_of)" = "$whole" ]; } && bad "$kind" "$n" "left '$output'"
    compgen -G "$output.*.part" >/dev/null && bad "$kind" "$n" "left a partial file"
}

check() {
    local kind=$1 n=$2 rc=$3
    n_runs=$((n_runs + 1))
    if [ "$kind" = int ]; then
        [ "$rc" = 130 ] || [ "$rc" = 0 ] || bad "$kind" "$n" "exit status $rc" # 0: it had fewer operations this time
        [ ! -s "$work/err" ] || bad "$kind" "$n" "more than silence"
        [ "$output" = - ] && return
        [ ! -e "$output" ] || [ "$(hash_of)" = "$whole" ] || bad "$kind" "$n" "left something else than the whole '$output'"
        compgen -G "$output.*.part" >/dev/null && bad "$kind" "$n" "left a partial file"
    elif [ "$rc" = 0 ]; then
        [ "$(kept)" = "$good" ] || bad "$kind" "$n" "exit status 0 with another output"
    else
        check_failure "$kind" "$n" "$rc"
    fi
}

for kind in alloc io int; do
    places=${kind/int/io}
    total=$(sed -n "s/^total $places //p" "$work/count")
    { sed -n "s/^$places //p" "$work/count"; echo "$total"; } | sort -nu >"$work/places"
    n=$(wc -l <"$work/places")
    [ "$total" = 0 ] && continue
    awk -v n="$n" -v limit="$limit" 'n <= limit || int(NR * limit / n) > int((NR - 1) * limit / n)' "$work/places" >"$work/chosen"
    while read -r place; do
        run "FAULT_${kind^^}" "$place" "$@"
        check "$kind" "$place" $?
        [ "$n_bad" -lt 5 ] || break 2
    done <"$work/chosen"
    echo "$kind: $(wc -l <"$work/chosen") of $n places of $total calls"
done 2>&1

# Inputs are links on the small disk; what else stands there in the end is listed outside.
on_small_disk() {
    local size=$1
    shift
    mkdir "$work/disk"
    unshare -rm bash -c 'mount -t tmpfs -o size="$1" none "$2/disk" && cd "$2/disk" && ln -s "$3"/* . || exit 99
        work=$2; shift 3; "$@" >"$work/out" 2>"$work/err" </dev/null; rc=$?
        find . -type f >"$work/left"; exit $rc' small-disk "$size" "$work" "$PWD" "$program" "$@" 2>/dev/null
}

remove_output
if [ "$bytes" -ge 16384 ] && unshare -rm true 2>/dev/null; then
    on_small_disk $((bytes / 2)) "$@"
    check full tmpfs $?
    [ -z "$(grep -v "^./$output.part\$" "$work/left")" ] || bad full tmpfs "left $(tr '\n' ' ' <"$work/left")"
    echo "full: $((bytes / 2)) bytes on a tmpfs"
elif [ "$bytes" -ge 4096 ]; then
    (ulimit -f $((bytes / 2048)) && run FAULT_NOTHING 0 "$@")
    check full limit $?
    echo "full: files of at most $((bytes / 2048)) KiB"
fi
remove_output
echo "faults: $n_runs runs, $n_failed reported the failure, $n_bad wrong"
[ "$n_bad" = 0 ] && [ "$n_failed" -gt 0 ]
