# Each allocation and each file operation of planning fails in turn: an error line, and no folder.
[ -z "${SAN:-}" ] || { echo "faults are not injected under sanitizers" >&2; exit 77; }
cat >small.grid <<'END'
# deadwood grid 1
rate  = 0.25 0.5
dense : synth --shape tiny-llama --type F32 -o $out.gguf
plan  : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv
cut   : cut -m $dense -p $plan -o $out.gguf
END
export XDG_CACHE_HOME=$PWD/cache # what other tests took would be in the output
FAULT_RUNS=${FAULT_RUNS:-40} bash "$ROOT/tests/faults.sh" - deadwood-sweep small.grid -o made --dry-run -q
test ! -e made
