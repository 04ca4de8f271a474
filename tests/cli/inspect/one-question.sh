# Of a model one thing is asked at a time, so that no option silently goes before --verify; --json takes --tensors along.
deadwood synth --shape tiny-llama --type F32 -q -o m.gguf
for options in '--tensors --verify' '--json --verify' '--keys --verify' '--lineage --verify' '--keys --tensors' '--json --lineage'; do
    status=0
    deadwood inspect m.gguf $options >out 2>err || status=$?
    test $status = 2
    test ! -s out
    grep -q 'give one of' err
done
deadwood inspect m.gguf --json --tensors | grep -q '"tensors":'
status=0
deadwood inspect m.gguf --verify >out 2>err || status=$?
test $status = 1 # no inputs: nothing was verified
status=0
deadwood inspect m.gguf --inputs . >out 2>err || status=$?
test $status = 2
grep -q -e '--inputs is for --verify' err
