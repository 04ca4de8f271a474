# What an imatrix gave is said, and what it lacks when neurons are ranked by it.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 --export-imatrix e.imatrix.gguf -t 1 -q
deadwood collect -m m.gguf --import-imatrix e.imatrix.gguf -o s.h5 2>err
grep -q "'s.h5': sums of squares of the inputs of 4 layers over 128 tokens, from 'e.imatrix.gguf'" err
deadwood rank -m m.gguf -s s.h5 --metric energy --rate 0.5 -o plan.tsv 2>err && exit 1
grep -q "the statistics know nothing of single neurons for 'e.imatrix.gguf'.* as those from an imatrix do" err

# An imatrix has no entry of the output matrix; by statistics made of one that matrix is not weighed either.
deadwood requant -m m.gguf -o direct.gguf --type Q4_0 -s e.imatrix.gguf -t 1 2>direct
deadwood requant -m m.gguf -o stats.gguf --type Q4_0 -s s.h5 -t 1 2>stats
test "$(grep -oE '[0-9]+ of the [0-9]+ rounded tensors had importances' direct)" = \
     "$(grep -oE '[0-9]+ of the [0-9]+ rounded tensors had importances' stats)"
tail -c 18000 direct.gguf >direct.data # of the output matrix
tail -c 18000 stats.gguf | cmp - direct.data
deadwood collect -m m.gguf --import-imatrix e.imatrix.gguf --export-imatrix again.imatrix.gguf -o again.h5 -q
if deadwood inspect again.imatrix.gguf --tensors | grep output.weight; then exit 1; fi

# In the old form it counts windows: few of them are still data without a name.
deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 --export-imatrix e.dat -t 1 -q
deadwood collect -m m.gguf --import-imatrix e.dat -o old.h5 2>err
grep -q "over 2 calls, which the old form counts for tokens, from 'e.dat'" err
deadwood requant -m m.gguf -o old.gguf --type Q4_0 -s old.h5 -t 1 -q
deadwood inspect old.gguf --json | grep -q unnamed_data

# Neurons are not ranked by a row of sums to which an imatrix was added.
deadwood collect -m m.gguf -f text.txt -c 64 --windows 3-4 --hist-every 1 -o a.h5 -t 1 -q
deadwood collect -m m.gguf -f text.txt -c 64 --windows 5-6 --hist-every 1 -o b.h5 -t 1 -q
deadwood collect -m m.gguf -s a.h5 s.h5 b.h5 --apart 1 -o pooled.h5 -q
deadwood rank -m m.gguf -s pooled.h5 --metric energy --rate 0.5 -o plan.tsv 2>err && exit 1
grep -q "know nothing of single neurons" err

# Models and importances, both GGUF, do not replace each other; importances replace importances of either form.
for form in e.imatrix.gguf e.dat; do
    deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 --export-imatrix $form -t 1 -q
    cp $form kept
    deadwood requant -m m.gguf -o $form --type Q8_0 -q 2>err && exit 1
    grep -q "'$form' is an importance matrix, not a GGUF model; choose another name" err
    cmp $form kept
done
cp direct.gguf model.dat
for model in direct.gguf model.dat; do
    deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 --export-imatrix $model -t 1 -q 2>err && exit 1
    grep -q "'$model' is a GGUF model, not an importance matrix; choose another name" err
done
cmp direct.gguf model.dat

# What cannot be added is told of the file that is named.
deadwood collect -m m.gguf -f text.txt -c 32 --windows 2 --hist-every 1 -o short.h5 -t 1 -q
deadwood collect -m m.gguf -s a.h5 short.h5 -o both.h5 -q 2>err && exit 1
grep -q "'short.h5': statistics with -c 32 --skip 0 --hist-every 1 cannot be added to others with 64, 0, 1" err
