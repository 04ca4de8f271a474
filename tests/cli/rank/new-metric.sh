# README's text on a new metric is true: put into metrics.c it compiles, is in the help, and ranks the embedded model.
[ -z "${SAN:-}" ] || { echo "objects of a sanitizer's build are not linked here" >&2; exit 77; }

awk '/^## / { here = /^## A metric of your own/ }
     here && /^```/ { inside = /^```c$/; n += inside; next }
     here && inside { print > (n == 1 ? "function" : "row") }' "$ROOT/README.md"
name=$(sed -n 's/^ *{"\([a-z-]*\)".*/\1/p' row)
test -n "$name"
test "$(cat function row | wc -l)" -le 30
awk 'FILENAME == "function" { text = text $0 "\n"; next } FILENAME == "row" { row = row $0 "\n"; next }
     /^\/\/ clang-format off/ && !table { printf "%s\n", text; table = 1 }
     table == 1 && /^    \{0\}\};/ { printf "%s", row; table = 2 }
     { print } END { exit table != 2 }' function row "$ROOT/engine/kit/metrics.c" >metrics.c

packages=$(sed -n 's/^PKGS *:= *//p' "$ROOT/Makefile")
cc -std=gnu11 -Wall -Wextra -Wshadow -Werror -I"$ROOT/engine" -I"$ROOT" -D_GNU_SOURCE $(pkg-config --cflags $packages) -c metrics.c
objects=metrics.o
for source in "$ROOT"/prune/*.c; do
    case $source in */rank.c) ;; *) ! grep -q '^int main' "$source" || continue ;; esac
    objects="$objects $BUILD/prune/$(basename "$source" .c).o"
done
cc $objects "$BUILD/libmeasure.a" "$BUILD/libkit.a" "$BUILD/libtext.a" "$BUILD/libengine.a" $(pkg-config --libs $packages) -lm -lpthread -o deadwood-rank

deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
deadwood collect -m mini.gguf -f "$ROOT/experiments/texts/calib/english-1.txt" -c 128 --windows 2 -o stats.h5 -q
./deadwood-rank --help | grep -q "^ *$name: "
./deadwood-rank -m mini.gguf -s stats.h5 -o plan.tsv --metric "$name" --rate 0.25 --group 64 -q
grep -q "^# metric $name " plan.tsv
deadwood cut -m mini.gguf -p plan.tsv -o smaller.gguf -q
test "$(stat -c %s smaller.gguf)" -lt "$(stat -c %s mini.gguf)"
