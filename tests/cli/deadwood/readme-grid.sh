# The grid that the README shows is read, and has the jobs that it says.
sed -n '/^# deadwood grid 1/,/^```/p' "$ROOT/README.md" | grep -v '^```' | sed "s|experiments/|$ROOT/experiments/|g" >readme.grid
deadwood sweep readme.grid -o sweep --controls none --dry-run >out
awk '$1 == "#" && $3 ~ /^[0-9]+$/ {print $2, $3}' out
