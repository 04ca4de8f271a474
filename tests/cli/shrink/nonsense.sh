# What cannot be done is said in one line before anything is written.
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
deadwood-synth --shape tiny-qwen2 --type Q8_0 -o q8.gguf -q
head -c 6000 "$ROOT/experiments/texts/calib/english-1.txt" >a.txt
head -c 6000 "$ROOT/experiments/texts/calib/english-2.txt" >b.txt
head -c 20 a.txt >short.txt
refused() { # refused STATUS WORDS ARGUMENTS..
    status=0
    deadwood-shrink "${@:3}" -o small.gguf >out 2>err || status=$?
    if [ "$status" != "$1" ] || [ "$(wc -l <err)" != 1 ] || [ -s out ] || [ -e small.gguf ] || [ -e small.gguf.shrink ] ||
        ! grep -qF -- "$2" err; then
        echo "shrink ${*:3}: status $status: $(cat err)"
        exit 1
    fi
}
both=(-f a.txt b.txt -c 64)
refused 2 'give --rate or --bytes' tiny.gguf "${both[@]}"
refused 2 'give --rate or --bytes, not both' tiny.gguf "${both[@]}" --rate 0.3 --bytes 300kB
refused 2 "'1.5' is not between" tiny.gguf "${both[@]}" --rate 1.5
refused 1 'removes no neuron: widths are multiples of 32, so a layer loses at least' tiny.gguf "${both[@]}" --rate 0.01
refused 1 '--rate 0.99 leaves fewer than 32 of' tiny.gguf "${both[@]}" --rate 0.99
refused 2 '--eval-windows belongs to --eval' tiny.gguf "${both[@]}" --rate 0.3 --eval-windows 2
refused 2 "'Q9' is not one of" tiny.gguf "${both[@]}" --rate 0.3 --mixture Q9
refused 1 "cannot open 'none.gguf'" none.gguf "${both[@]}" --rate 0.3
refused 1 'not a GGUF file' a.txt "${both[@]}" --rate 0.3
refused 1 'deadwood convert . -o M.gguf' . "${both[@]}" --rate 0.3
refused 1 'is not a text in UTF-8' tiny.gguf -f a.txt tiny.gguf -c 64 --rate 0.3
refused 1 'a window needs 64' tiny.gguf -f a.txt short.txt -c 64 --rate 0.3
refused 1 'rows need texts of their own' tiny.gguf -f a.txt -c 64 --rate 0.3
refused 1 'rows and --evaluations need texts' tiny.gguf "${both[@]}" --rate 0.3 --evaluations 4
refused 1 'among the texts of -f and of --eval' tiny.gguf "${both[@]}" --rate 0.3 --eval b.txt
refused 1 'windows 1 to 9000 are wanted' tiny.gguf "${both[@]}" --rate 0.3 --windows 9000
bytes=$(stat -c %s tiny.gguf)
refused 1 "'tiny.gguf' has $bytes without a cut; use it as it is" tiny.gguf "${both[@]}" --bytes 1GB
refused 1 "'tiny.gguf' has $bytes without a cut; use it as it is" tiny.gguf "${both[@]}" --bytes "$bytes"
refused 1 'as Q8_0 without a cut' tiny.gguf "${both[@]}" --bytes 1GB --mixture Q8_0
refused 1 'give fewer bytes' tiny.gguf "${both[@]}" --bytes 1GB
refused 1 'give more bytes, or smaller types' tiny.gguf "${both[@]}" --bytes 10kB
refused 1 'is Q8_0 already' q8.gguf "${both[@]}" --rate 0.3 --mixture Q4_0

# Windows longer than those that the model was trained on are told before anything runs.
context=$(deadwood-inspect tiny.gguf | awk '$1 == "context" {print $2}')
for i in 1 2 3; do cat "$ROOT"/experiments/texts/calib/*-"$i".txt >long-$i.txt; done
deadwood-shrink tiny.gguf -f long-*.txt -c $((context + 8)) --rate 0.3 -o long.gguf --dry-run >out 2>err
test "$(grep -c "warning: 'tiny.gguf' was trained on $context positions, windows have $((context + 8))" err)" = 1
