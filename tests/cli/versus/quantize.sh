# Upstream's quantizer: the output appears whole or not at all, and an old file stays when it fails.
if ! ls "${DW_STOCK:-.}"/libllama*.so* >/dev/null 2>&1; then
    echo "\$DW_STOCK names no folder with libllama*.so" >&2
    exit 77
fi
deadwood synth --shape tiny-llama --type F16 -o m.gguf -q
cp m.gguf q.gguf # an old file
deadwood versus -m m.gguf --quantize Q8_0 -o q.gguf 2>log || { cat log; exit 1; }
deadwood inspect q.gguf >inspected
grep -q Q8_0 inspected
deadwood versus -m m.gguf --quantize IQ4_XS -o other.gguf 2>log || { cat log; exit 1; } # no type of this engine
test -s other.gguf

# The file says who quantized it, and that importances of texts without a name were used; the next step keeps that.
head -c 3000 "$ROOT/README.md" >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 -o im.h5 --export-imatrix im.gguf -q
deadwood versus -m m.gguf --quantize Q4_0 --imatrix im.gguf -o w.gguf 2>log || { cat log; exit 1; }
deadwood inspect w.gguf --lineage | grep -q '^# after these commands upstream quantized the file: llama.cpp .*, Q4_0$'
deadwood score -m w.gguf -f text.txt -c 64 --no-speed -t 1 -q -o rows.tsv >out
deadwood table rows.tsv --columns tool,type,leak --format tsv | grep -q '^versus	Q4_0	-$'
deadwood requant -m w.gguf --type F32 -o f.gguf -q
deadwood inspect f.gguf --json | grep -q '"parent_quantized_by":"llama.cpp '
deadwood inspect f.gguf --lineage | grep -q '^# here upstream quantized the file: llama.cpp .*, Q4_0$'
deadwood score -m f.gguf -f text.txt -c 64 --no-speed -t 1 -q -o later.tsv >out
deadwood table later.tsv --columns tool,type,leak --format tsv | grep -q '^requant	F32	-$'
rm text.txt im.* w.gguf f.gguf out rows.tsv* later.tsv*

# Upstream begins the file before it refuses to requantize.
cp m.gguf kept.gguf
if deadwood versus -m q.gguf --quantize Q4_0 -o kept.gguf 2>log; then exit 1; fi
grep -q "upstream cannot quantize 'q.gguf' to Q4_0" log || { cat log; exit 1; }
cmp m.gguf kept.gguf
if deadwood versus -m q.gguf --quantize Q4_0 -o new.gguf 2>log; then exit 1; fi
test ! -e new.gguf
test "$(ls | tr '\n' ' ')" = 'inspected kept.gguf log m.gguf other.gguf q.gguf '
