# The lineage is text in UTF-8, so a name that is not is refused in words, before anything is written.
deadwood-synth --shape tiny-llama --type F32 -o $'bad\xff.gguf' -q
status=0
deadwood-requant -m $'bad\xff.gguf' --type Q8_0 -o new.gguf -q 2>err || status=$?
test "$status" = 1
test "$(wc -l <err)" = 1
grep -q "is not UTF-8 text, as the lineage in the new file must be; rename it" err
test ! -e new.gguf
mv $'bad\xff.gguf' good.gguf
deadwood-requant -m good.gguf --type Q8_0 -o new.gguf -q
