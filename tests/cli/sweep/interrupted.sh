# A sweep that is told to end in the middle of a job ends the job too, leaves no half-written file, and goes on when asked again.
cat >small.grid <<'END'
# deadwood grid 1
rate  = 0.25 0.5
dense : synth --shape base --type F32 -o $out.gguf
plan  : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv
cut   : cut -m $dense -p $plan -o $out.gguf
END
sweep=(deadwood-sweep small.grid -o made --keep all)
env --default-signal=INT "${sweep[@]}" 2>err &
for i in $(seq 300); do
    compgen -G 'made/log/dense-*.log' >log && break
    sleep 0.02
done
sleep 0.2 # now it writes
kill -INT $!
status=0
wait $! || status=$?
test -s log
test "$status" = 130
test "$(grep -c interrupted err)" = 1
test -z "$(compgen -G 'made/*.part')"
test -z "$(compgen -G 'made/*.gguf')"
"${sweep[@]}" -q
test "$(ls made/*.gguf | wc -l)" = 3
