# `make help` lists every target that says what it is for.
make -s -C "$ROOT" help >help
sed -n 's/^\([^ :#]*\):.*## .*/\1/p' "$ROOT/Makefile" | while read -r target; do
    grep -q "^  $target[[:space:]]" help || { echo "make help does not list '$target'" >&2 && exit 1; }
done
