# The transposed copy of down takes the type of down, but no importances; mixtures that need them can be made all the same.
deadwood convert "$ROOT/experiments/mini" -o m.gguf -q
deadwood collect -m m.gguf -f "$ROOT/experiments/texts/calib/code-1.txt" -c 256 --windows 2 -o s.h5 -q
deadwood gate -m m.gguf -s s.h5 --rule cats --activity 0.5 -o gated.gguf -q 2>err
deadwood requant -m gated.gguf -s s.h5 --mixture Q2_K_S -o small.gguf -q 2>err
deadwood inspect small.gguf --tensors | grep -q '^blk.7.ffn_down_t.weight	Q2_K	'
status=0
deadwood requant -m gated.gguf --mixture Q2_K_S -o none.gguf -q 2>err || status=$? # the others need them
test $status = 1
