# The help lists every metric, with a space after its name, however long the name is.
deadwood-rank --help >help.txt
for metric in activation random wanda energy obs; do grep -q "^  $metric: [^ ]" help.txt; done

# The man page fits 80 columns: lists of metrics are wrapped.
for name in rank gate requant versus; do
    [ -x "$BUILD/deadwood-$name" ] || continue
    "deadwood-$name" --help-man >$name.1
    sed '/^.SH EXAMPLES/,$d' $name.1 >no-examples.1
    if command -v man >/dev/null; then
        MANWIDTH=80 LC_ALL=C man -l no-examples.1 2>/dev/null | col -bx >$name.txt || continue
        awk -v name=$name 'length($0) > 80 {print name ": " $0; bad = 1} END {exit bad}' $name.txt
    fi
done
grep -A 2 '^.TP' rank.1 | grep -q 'fBenergy'
