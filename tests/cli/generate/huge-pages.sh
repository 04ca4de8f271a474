# Weights in huge pages give the same text, and rows of speed say so; a system that gives none is named.
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
pages=/sys/kernel/mm/transparent_hugepage/enabled
if ! grep -q . $pages 2>/dev/null || grep -qF '[never]' $pages; then
    status=0
    deadwood generate -m mini.gguf -p 'The function' -n 4 --huge-pages >out 2>err || status=$?
    test "$status" = 1
    grep -q 'gives no huge pages' err
    exit 0
fi
deadwood generate -m mini.gguf -p 'The function returns' -n 12 --temp 0 -q >text
deadwood generate -m mini.gguf -p 'The function returns' -n 12 --temp 0 -q --huge-pages | cmp text -
deadwood score -m mini.gguf --speed-only --speed-rounds 1 --huge-pages -q -o rows.tsv >/dev/null
grep -q 'pp512 tg64, huge pages' rows.tsv
status=0
deadwood score -m mini.gguf -f text --no-speed --huge-pages >out 2>err || status=$?
test "$status" = 2
