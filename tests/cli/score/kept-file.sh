# What -o adds to: an empty file, a link, a file that others may not read; what cannot be added to fails before the work.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
score() { deadwood score -m m.gguf -f text.txt -c 64 --windows "$1" --no-speed -t 1 -q -o "$2" >out 2>err; }

: >empty.tsv
score 1-2 empty.tsv
test "$(grep -cv '^#' empty.tsv)" = 2

mkdir real
score 1-2 real/rows.tsv
chmod 600 real/rows.tsv
ln -s real/rows.tsv rows.tsv
score 3-4 rows.tsv
test -h rows.tsv
test "$(grep -cv '^#' real/rows.tsv)" = 3
test "$(stat -c %a real/rows.tsv)" = 600
test ! -e rows.tsv.windows
deadwood table real/rows.tsv --against m.gguf -o against.md -q

printf 'not sums' >real/rows.tsv.windows
score 5-6 rows.tsv && exit 1
grep -q 'holds no window sums' err
test ! -s out
