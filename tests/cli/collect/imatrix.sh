# What an imatrix gave is said, and what it lacks when neurons are ranked by it.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 --export-imatrix e.imatrix.gguf -t 1 -q
deadwood collect -m m.gguf --import-imatrix e.imatrix.gguf -o s.h5 2>err
grep -q "'s.h5': sums of squares of the inputs of 4 layers over 128 tokens, from 'e.imatrix.gguf'" err
deadwood rank -m m.gguf -s s.h5 --metric energy --rate 0.5 -o plan.tsv 2>err && exit 1
grep -q "the statistics know nothing of single neurons for 'e.imatrix.gguf', as those from an imatrix do" err
