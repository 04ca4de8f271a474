# Hostile files that once crashed, hung, took gigabytes or lied: each costs one line, soon, and leaves no output.
# The files are small, but not part of the tree: DW_SHARED names the folder that has them.
[ -d "${DW_SHARED:-}/broken" ] || { echo "the shared material is not there" >&2; exit 77; }
[ -z "${SAN:-}" ] || { echo "a sanitizer needs more memory than is allowed here" >&2; exit 77; }
broken=$DW_SHARED/broken
deadwood synth --shape tiny-qwen2 --type Q8_0 --gate --group 32 -o m.gguf -q

refused() { # COMMAND...: exit status 1, one line, within 5 s (2 on an idle machine) and 200 MB of address space beyond what it has
    local rc=0
    (ulimit -v 2000000; timeout 5 "$@" >out 2>err </dev/null) || rc=$?
    [ "$rc" = 1 ] && [ "$(cat out err | wc -l)" = 1 ] || { echo "exit status $rc: $*"; cat out err; return 1; }
    [ ! -e made ] || { echo "left an output: $*"; return 1; }
}
refused deadwood-inspect "$broken/hg.h5"
refused deadwood-inspect "$broken/links.h5"
refused deadwood-inspect "$broken/wrap0.h5"
refused deadwood-rank -m m.gguf -s "$broken/wrap1.h5" --metric energy --rate 0.5 -o made
refused deadwood-train -m m.gguf -x "$broken/hang.traces" -o made
refused deadwood-collect -m m.gguf --import-imatrix "$broken/counts.imatrix" -o made
for stored in hang rec large small; do
    refused deadwood-score -c 64 --windows 2 -m "$broken/$stored.bin" --base "$broken/base.bin" --no-speed
done
refused deadwood-score -c 64 --windows 2 -m "$broken/large.bin" --base "$broken/small.bin" --no-speed

# Dimensions of 1 beyond the second are no dimensions: the cut is a model, and nothing outside of it was read.
for n in 3 4; do
    deadwood cut -m "$broken/dims$n.gguf" -p "$broken/hand.plan" -o cut$n.gguf -q 2>/dev/null
    deadwood inspect cut$n.gguf >shown
done

# What a file's lineage says becomes neither an option that writes elsewhere nor a control byte.
for file in lineage facts; do
    deadwood inspect "$broken/$file.gguf" --lineage >shown
    if grep -E -- '--stock|-o [^ ]*/|-o \.|^-' shown; then exit 1; fi
    if LC_ALL=C grep -q "$(printf '[\001-\010\013-\037]')" shown; then exit 1; fi
done
deadwood score -c 64 --windows 2 -m "$broken/stored-esc.bin" --base "$broken/base.bin" --no-speed >shown 2>&1
if LC_ALL=C grep -q "$(printf '[\001-\010\013-\037]')" shown; then exit 1; fi
