# --bytes that are too few are refused before anything is written, with the number that is enough: the steps then run to
# their end, and the result has no more.
deadwood-convert "$ROOT/experiments/mini" -o mini.gguf --type bf16 -q # layers of 1024 neurons: K types keep 256 or more
deadwood-synth --shape tiny-qwen2 --type BF16 -o tiny.gguf -q
for i in 1 2 3; do head -c 2000 "$ROOT/experiments/texts/calib/english-$i.txt" >$i.txt; done
least() { # least MODEL ARGUMENTS..
    shrink=(deadwood-shrink "$1" -f 1.txt 2.txt 3.txt -c 64 -o small.gguf "${@:2}" --bytes)
    status=0
    "${shrink[@]}" 1kB 2>err >out || status=$?
    test $status = 1
    needed=$(sed -n 's/.*--bytes 1000 is too little: \([0-9]*\) are needed, .* without its neurons; give more bytes.*/\1/p' err)
    status=0
    "${shrink[@]}" $((needed - 1)) 2>err >out || status=$?
    test $status = 1
    grep -q "too little: $needed are needed" err
    test "$(wc -l <err)" = 1
    test ! -e small.gguf.shrink
    "${shrink[@]}" "$needed" >out 2>err || { cat err; exit 1; }
    test "$(stat -c %s small.gguf)" -le "$needed"
    rm -r small.gguf small.gguf.shrink
}
least tiny.gguf
least tiny.gguf --mixture Q8_0 --evaluations 4
least mini.gguf --mixture Q4_K_M
