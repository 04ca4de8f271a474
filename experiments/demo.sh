#!/bin/sh
# demo.sh - what `make demo` runs: the embedded model is converted, scored in several number formats and heard.
#
# Every step is an ordinary command, printed before it runs; files are in build/demo.  DEMO_THREADS sets -t.
set -eu
cd "$(dirname "$0")/.."

missing=""
for tool in cc make pkg-config; do
    command -v "$tool" >/dev/null 2>&1 || missing="$missing $tool"
done
for library in libpcre2-8 jansson libzstd hdf5 openblas lapacke; do
    pkg-config --exists "$library" 2>/dev/null || missing="$missing $library"
done
if [ -n "$missing" ]; then
    echo "demo: missing:$missing" >&2
    echo "demo: install what README names:" >&2
    grep -m 1 'apt-get install' README.md | sed 's/^/  /' >&2
    exit 1
fi

make -s -j2
PATH="$PWD/build:$PATH"
out=build/demo
threads=${DEMO_THREADS:-0}
mkdir -p "$out"

# Prints a command as it would be typed, and runs it.
run() {
    printf '\n$'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./=-]*) printf " '%s'" "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$@"
}

echo "The embedded model (12 M parameters, experiments/mini) in four number formats."
for type in keep f16 q8_0 q4_0; do
    [ "$type" = keep ] && name=bf16 || name=$type
    run deadwood convert experiments/mini -o "$out/mini-$name.gguf" --type "$type" -t "$threads"
done

echo
echo "Scored on five texts written for this project, against the file with the checkpoint's own bits."
rm -f "$out/rows.tsv"
run deadwood score -m "$out/mini-bf16.gguf" "$out/mini-f16.gguf" "$out/mini-q8_0.gguf" "$out/mini-q4_0.gguf" \
    --base "$out/mini-bf16.gguf" -f experiments/texts/eval/*.txt -o "$out/rows.tsv" -t "$threads"

echo
echo "How the last file came to be, and what it says."
run deadwood inspect "$out/mini-q4_0.gguf" --lineage
run deadwood generate -m "$out/mini-q4_0.gguf" -p 'The function returns' -n 40 --temp 0 -t "$threads"
echo
echo "All columns are in $out/rows.tsv (deadwood score --columns says what each means)."
