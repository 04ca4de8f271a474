# The plan of the parent does not fit the cut model, and the message says so, not that a neuron is missing.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
deadwood rank -m m.gguf --metric weight --rate 0.5 -o plan.tsv -q
deadwood cut -m m.gguf -p plan.tsv -o half.gguf -q
status=0
deadwood cut -m half.gguf -p plan.tsv -o quarter.gguf >out 2>err || status=$?
test $status = 1
grep -q "'plan.tsv' was made for another model (sha256 .*, 'half.gguf' has .*); give that model, or rank this one" err
test ! -e quarter.gguf
