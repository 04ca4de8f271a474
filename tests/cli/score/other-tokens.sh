# A model that cuts a text into other tokens is not compared with another, neither stored nor in a table.
deadwood-convert "$ROOT"/experiments/mini -o m.gguf -q
LC_ALL=C sed 's/\(tokenizer\.ggml\.pre.\{12\}\)qwen2/\1gpt-2/' m.gguf >other.gguf # its vocabulary is the same
if cmp -s m.gguf other.gguf; then exit 1; fi
head -c 6000 "$ROOT"/experiments/texts/eval/code.txt >text.txt
score() { deadwood-score "$@" -f text.txt -c 64 --windows 1-3 --no-speed -q -t 1; }
score -m m.gguf --store m.base >/dev/null
for base in m.gguf m.base; do
    if score -m other.gguf --base $base >out.txt 2>err.txt; then exit 1; fi
    grep -q "cut the text 'text.txt' into different tokens" err.txt || { cat err.txt >&2; exit 1; }
done
score -m m.gguf other.gguf -o rows.tsv >/dev/null
deadwood-table rows.tsv --against m.gguf --format tsv --columns model,difference >table.tsv
grep -q "^m.gguf	0	" table.tsv && grep -q "^other.gguf	-	" table.tsv || { cat table.tsv >&2; exit 1; }
