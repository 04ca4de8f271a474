# What shrink chooses itself, seen in its grid: the metric, and widths that fit the blocks of a mixture.  The rate that
# it tells is the one that rank reaches.
deadwood-convert "$ROOT/experiments/mini" -o mini.gguf --type bf16 -q # 8 layers of 1024 neurons
deadwood-synth --shape tiny-qwen2 --type Q8_0 -o q8.gguf -q
for i in 1 2 3; do head -c 9000 "$ROOT/experiments/texts/calib/english-$i.txt" >$i.txt; done
grid_of() { # grid_of MODEL ARGUMENTS..
    deadwood-shrink "$1" -f 1.txt 2.txt 3.txt -c 64 -o x.gguf --dry-run "${@:2}" >out 2>err
    cp x.gguf.shrink/shrink.grid grid
    rm -r x.gguf.shrink
}
has() { grep -q -- "$1 : .*$2" grid || { echo "no '$2' in $1: $(cat grid)"; exit 1; }; }
has_no() { if grep -q -- "$1 : .*$2" grid; then echo "'$2' in $1: $(cat grid)"; exit 1; fi; }

# K types: 768 is the multiple of 256 that is nearest to 717
grid_of mini.gguf --rate 0.3 --mixture Q4_K_M
has '^stats' '--gradients'
has '^plan' '--metric obs-gradient --rate 0.3 --as Q4_K_M'
has '^random_plan' '--as Q4_K_M'
grep -q 'widths are multiples of 256, the blocks of Q4_K_M: rate 0.2500 instead of 0.3$' err
grep -q -- '--evaluations 200 would take about' err
deadwood-rank -m mini.gguf --metric random --rate 0.3 --as Q4_K_M -o plan.tsv 2>said
grep -q 'reached 0.2500; widths 768 to 768' said

# widths that differ by layer keep 22 of 32 blocks; the control, with one width for all, stays at the rate
grid_of mini.gguf --rate 0.3 --mixture Q4_K_M --evaluations 9
has '^plan' '--as Q4_K_M --allocate evolve'
has_no '^random_plan' '--as'
grep -q 'rate 0.3125 instead of 0.3$' err
if grep -q 'would take about' err; then exit 1; fi

# the type of the output matrix goes to all that rounds, and counts in bytes
grid_of mini.gguf --rate 0.25 --mixture Q3_K_S --output-type Q4_K
has '^small' 'requant .*--mixture Q3_K_S --output-type Q4_K'
has '^rounded' '--mixture [^ ]* --output-type Q4_K'
has_no '^plan' '--output-type'
# 13,328 bytes are kept for what the lineage grows by: 8 KB, 8 bytes for each 16 tokens that cut and heal -s read and
# for each 16 bytes that heal reads
grid_of mini.gguf --bytes 5000000 --mixture Q3_K_S --output-type Q3_K --heal-minutes 1
has '^plan' '--bytes 4986672 --as Q3_K_S --output-type Q3_K'
has '^random_plan' '--bytes 4986672 --as Q3_K_S --output-type Q3_K'
has '^small' 'heal .*--as Q3_K_S --output-type Q3_K'
has '^learned' '--output-type Q3_K'
bytes=$(for n in $(seq 1500000 100000 4000000); do
    deadwood-shrink mini.gguf -f 1.txt 2.txt -c 64 -o x.gguf --dry-run --bytes $n --mixture Q3_K_S --output-type Q3_K >out 2>err || continue
    echo $n
    break
done)
status=0
deadwood-shrink mini.gguf -f 1.txt 2.txt -c 64 -o x.gguf --dry-run --bytes "$bytes" --mixture Q3_K_S >out 2>err || status=$?
test $status = 1
grep -q 'as Q3_K_S without its neurons' err
status=0
deadwood-shrink mini.gguf -f 1.txt --rate 0.3 --output-type Q4_K -o x.gguf >out 2>err || status=$?
test $status = 2
grep -q -- '--output-type belongs to --mixture' err

# no multiple is near, or every width is one
grid_of mini.gguf --rate 0.1 --mixture Q4_K_M
has_no '^plan' '--as'
grep -q 'multiples of 256, the blocks of Q4_K_M, are too far from rate 0.1: down gets larger types' err
grid_of mini.gguf --rate 0.5 --mixture Q4_K_M
has '^plan' '--as Q4_K_M'
if grep -q 'multiples' err; then exit 1; fi
grid_of mini.gguf --rate 0.3 --mixture Q8_0
has_no '^plan' '--as'
grid_of mini.gguf --rate 0.3
has_no '^plan' '--as'
grep -q 'widths are multiples of 32: rate 0.3125 instead of 0.3$' err
deadwood-rank -m mini.gguf --metric random --rate 0.3 -o plan.tsv 2>said
grep -q 'reached 0.3125; widths 704 to 704' said

# fewer bits, or the user's word
grid_of q8.gguf --rate 0.5
has '^plan' '--metric obs '
has_no '^stats' '--gradients'
grid_of mini.gguf --rate 0.5 --metric obs
has '^plan' '--metric obs '
has_no '^stats' '--gradients'

# the memory that heal needs grows with its windows
memory_of() { # memory_of CTX: in MB
    deadwood-shrink mini.gguf -f 1.txt 2.txt 3.txt -c "$1" --rate 0.3 --heal-minutes 1 -o m.gguf --dry-run >out 2>err
    sed -n 's/.*, \([0-9.]*\) MB of memory.*/\1/p' err
}
awk "BEGIN { exit !($(memory_of 256) > $(memory_of 128) + 20) }"
