# The commands that shrink prints, run one by one, give the model that shrink gives; the row of it stands beside its
# controls; a second run finds everything done.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
mkdir texts
for i in 1 2 3; do head -c 1500 "$ROOT/experiments/texts/calib/english-$i.txt" >"texts/it's [$i].txt"; done
shrink=(deadwood-shrink tiny.gguf -f texts/*.txt -c 32 --bytes 190kB --mixture Q8_0 --evaluations 4 -o small.gguf)
"${shrink[@]}" --dry-run >said 2>estimate
grep -q '^deadwood-shrink: all steps together: about .* minutes on .* of memory, .* of disk in .small.gguf.shrink.' estimate
test ! -e small.gguf
test ! -e small.gguf.shrink/rows.tsv

mkdir hand
cp -r tiny.gguf texts hand
mkdir hand/small.gguf.shrink
grep '^deadwood ' said >commands.sh
test "$(wc -l <commands.sh)" = 15
grep -v '^deadwood score' commands.sh >hand/commands.sh
(cd hand && bash -eu commands.sh 2>log)

"${shrink[@]}" >table 2>err
cmp small.gguf hand/small.gguf.shrink/small-*.gguf
test "$(stat -c %s small.gguf)" -le 190000
cut -d'|' -f2 table | sed -n 's/^ \(small\|random_small\|rounded\|tiny\)[-.].*/\1/p' >models
printf '%s\n' tiny small random_small rounded | cmp - models
grep -q 'random_small.* control' table
if grep -q leak table; then exit 1; fi # no text of a row made anything
deadwood-inspect small.gguf --verify --inputs small.gguf.shrink . >verified
grep -q 'evolve' small.gguf.shrink/plan-*.tsv

touch mark
"${shrink[@]}" >again 2>err
grep -q 'every step is done' err
test -z "$(find small.gguf.shrink -newer mark -name '*.gguf')"
cmp table again
