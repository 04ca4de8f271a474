# Weights in huge pages give the same text and the same scores; a system that gives none is named.
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
pages=/sys/kernel/mm/transparent_hugepage/enabled
if ! grep -q . $pages 2>/dev/null || grep -qF '[never]' $pages; then
    status=0
    deadwood generate -m mini.gguf -p 'The function' -n 4 --huge-pages >out 2>err || status=$?
    test "$status" = 1
    grep -q 'gives no huge pages' err
    exit 0
fi
for n in 0 1; do
    huge=$([ $n = 0 ] || echo --huge-pages)
    deadwood generate -m mini.gguf -p 'The function returns' -n 12 --temp 0 -q $huge >text$n
    deadwood score -m mini.gguf -f "$ROOT/README.md" --windows 2 -c 64 --speed-rounds 1 $huge -q -o rows$n.tsv >/dev/null
    awk -F'\t' '!/^#/ { if (!k) for (k = NF; k; k--) if ($k == "ppl") { at = k; break } print $at }' rows$n.tsv >ppl$n
done
cmp text0 text1
cmp ppl0 ppl1
grep -q 'pp512 tg64, huge pages' rows1.tsv
