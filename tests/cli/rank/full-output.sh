# A standard output that cannot be written is one error, whatever goes there.
[ -w /dev/full ] || { echo "there is no /dev/full" >&2; exit 77; }
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
for options in '-o -' '--scores -' '--compare'; do
    metric='--metric weight'
    [ "$options" != --compare ] || metric=
    status=0
    deadwood rank -m m.gguf $metric --rate 0.5 $options -q >/dev/full 2>err || status=$?
    test $status = 1
    test "$(cat err)" = 'deadwood-rank: cannot write to stdout: No space left on device'
done
