# Without --group, group-max works on 64 neurons, or on 32 where 64 does not divide the widths; cats on single ones.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood rank -m m.gguf --metric weight --rate 0.25 --multiple 32 -o plan.tsv -q
deadwood cut -m m.gguf -p plan.tsv -o narrow.gguf -q
group_of() { # group_of MODEL RULE
    deadwood collect -m $1.gguf -f text.txt -c 64 --windows 2 -o $1.h5 -t 1 -q
    deadwood gate -m $1.gguf -s $1.h5 -o gated.gguf --rule $2 --activity 0.5 -t 1 -q
    deadwood inspect gated.gguf --lineage | grep -o -e '--group [0-9]*'
}
test "$(group_of m group-max)" = '--group 64'
test "$(group_of narrow group-max)" = '--group 32'
test "$(group_of m cats)" = '--group 1'

# rank names a group that fits where the given one does not divide a width.
for options in '--rate 0.5 -o out.tsv' '--scores out.tsv'; do
    status=0
    deadwood rank -m narrow.gguf --metric weight --group 64 $options 2>err || status=$?
    test $status = 1
    grep -q '96 neurons are not a multiple of the group size 64; groups of 32 fit' err
done
