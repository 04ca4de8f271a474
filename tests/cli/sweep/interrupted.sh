# A sweep that is told to end in the middle of a job ends the job, too, leaves no half-written file, and goes on when asked
# again.  The job's output has a temporary name, so that something is there that must be removed.
named="FAULT_NO_TMPFILE=1 LD_PRELOAD=$(dirname "$(command -v deadwood-sweep)")/faults.so" begun='*.dw*.part'
[ -z "${SAN:-}" ] || named='' begun='dense-*.log' # no preloading under sanitizers
cat >small.grid <<'END'
# deadwood grid 1
rate  = 0.25 0.5
dense : synth --shape base --type F32 -o $out.gguf
plan  : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv
cut   : cut -m $dense -p $plan -o $out.gguf
END
sweep=(deadwood-sweep small.grid -o made --keep all)
# Other work of the machine must not keep this watcher from its turn: the job goes last.
env --default-signal=INT $named nice -n 19 "${sweep[@]}" 2>err &
for i in $(seq 1000); do
    find made -path made/claims -prune -o -name "$begun" -print 2>/dev/null | grep . >log && break
    sleep 0.01
done
kill -INT $!
status=0
wait $! || status=$?
test -s log
test "$status" = 130
test "$(grep -c interrupted err)" = 1
test -z "$(find made -name '*.part')"
test -z "$(compgen -G 'made/*.gguf')"
"${sweep[@]}" -q
test "$(ls made/*.gguf | wc -l)" = 3
