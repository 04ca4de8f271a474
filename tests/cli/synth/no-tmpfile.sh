# Where the file system has no files without a name, an output has a temporary name from the beginning, and is the same.
[ -z "${SAN:-}" ] || { echo "no preloading under sanitizers" >&2; exit 77; }
plain=$(printf 'm%.0s' $(seq 227)).gguf # 232 bytes
synth=(deadwood-synth --shape tiny-llama --type F32 -t 1 -q -o)
"${synth[@]}" "$plain"
sha256sum <"$plain" >wanted
faults=$(dirname "$(command -v deadwood-synth)")/faults.so
named() { FAULT_NO_TMPFILE=1 LD_PRELOAD="$faults" "$@"; }
rm "$plain"
named "${synth[@]}" "$plain"
sha256sum <"$plain" | cmp - wanted
test "$(ls | wc -l)" = 2
# A process that is killed leaves the temporary file, which tells what it is by its name.
named deadwood-synth --shape base --type F32 -o big.gguf -t 1 -q &
for i in $(seq 300); do
    compgen -G 'big.gguf.dw*.part' >part && break
    sleep 0.02
done
kill -KILL $!
wait $! || true
grep -qE '^big\.gguf\.dw[0-9a-f]{16}\.part$' part
test ! -e big.gguf
