#!/bin/bash
# flipped.sh - runs a command that stores one bit of its new file wrong: it must find that before the rename.
#
#   bash tests/flipped.sh OUTPUT WHERE PROGRAM ARGS...     WHERE: FAULT_FLIP of preload_faults.c
#
# The program ends with status 1 and says so, OUTPUT, an empty file, stays, and no partial file stays.  Under sanitizers
# faults are not injected: status 77.
set -eu
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
output=$1 where=$2
shift 2
: >"$output"
status=0
LD_PRELOAD=$BUILD/faults.so FAULT_FLIP=$where "$@" >/dev/null 2>err || status=$?
test "$status" = 1
test -e "$output" && test ! -s "$output"
grep -q "$output' was not written, because the new file fails its check" err
if grep -q /proc err; then exit 1; fi
if compgen -G '*.dw*.part'; then exit 1; fi
