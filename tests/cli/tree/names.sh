# Names of C files are unique in the whole tree.
cd "$ROOT"
find engine prune predict quant experiments tests -name '*.c' | sed 's|.*/||' | sort | uniq -d >"$OLDPWD/twice"
cat "$OLDPWD/twice"
test ! -s "$OLDPWD/twice"
