# `convert DIR OUT` is what other programs take; here the second word is no output, and one line says so.
for second in "$ROOT/README.md" "$ROOT/experiments/mini"; do
    status=0
    deadwood-convert "$ROOT/experiments/mini" "$second" -o x.gguf >out 2>err || status=$?
    test "$status" = 2
    test "$(wc -l <err)" = 1
    grep -qF "and '$second' are given, and one checkpoint folder is converted; the output is named with -o FILE" err
    test ! -e x.gguf
done
status=0
deadwood-convert "$ROOT/experiments/mini" out.gguf -o x.gguf 2>err || status=$?
test "$status" = 1
grep -qF "cannot open 'out.gguf' (DIR)" err
