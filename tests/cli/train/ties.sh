# Neurons of padding have no mass and equal scores.  An activity that would need some of them is not reached, and train
# says so for their layer alone.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
printf '# deadwood plan 1\nlayer width keep\n0 64 0-63\n1 128 0-127\n2 128 0-127\n3 128 0-127\n' >plan.tsv
deadwood cut -m m.gguf -p plan.tsv --pad -o padded.gguf -q
deadwood collect -m padded.gguf -f text.txt -c 64 --windows 2 -o s.h5 -t 1 -q
deadwood gate -m padded.gguf -s s.h5 -o gated.gguf --rule cats --activity 0.3 -t 1 -q
deadwood trace -m gated.gguf -f text.txt -c 64 --tokens 512 -o x.h5 -t 1 -q
deadwood train -m gated.gguf -x x.h5 -o p.gguf --activity 0.7 --epochs 1 -t 1 -q >/dev/null 2>err
grep -q 'warning: layer 0: the predictor opens 0\.[56].* of the groups on held-out tokens, not --activity 0.7: ' err
test "$(grep -c 'warning: layer' err)" = 1
