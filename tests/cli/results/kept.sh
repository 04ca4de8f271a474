# Models of an interrupted run are kept while commit and changes are the same, and made anew otherwise, with programs
# that answer at once.
command -v git >/dev/null || { echo "git is not installed" >&2; exit 77; }
unset DIRTY
mkdir -p tree/experiments tree/results tree/build
cp "$ROOT"/experiments/results.sh "$ROOT"/experiments/results_7b.sh "$ROOT"/experiments/clean_tree.sh tree/experiments
cat >tree/build/deadwood <<'END'
#!/bin/sh
echo "$*" >>"$RAN"
case "$*" in *"${FAILS:-nothing}"*) exit 1 ;; esac
for word; do
    case $last in -o | --report | --plot) [ "$1" = sweep ] || [ "$word" = - ] || echo "$*" >"$word" ;; esac
    last=$word
done
END
printf '#!/bin/sh\necho sparse\n' >tree/build/bench_sparse
chmod +x tree/build/*
cd tree
export RAN=$PWD/../ran GIT_CONFIG_GLOBAL=/dev/null
echo build >.gitignore
echo 1 >code.c
echo 1 >results/cut.md
git init -q .
commit() { git -c user.name=a -c user.email=a@b add -A; git -c user.name=a -c user.email=a@b commit -qm "$1"; }
commit first

made() { grep -c "^$1 " "$RAN" || true; }
measure() { # SCRIPT: tells of old files only where it says so
    : >"$RAN"
    sh "experiments/$1.sh" >../out 2>../err || { cat ../out ../err; exit 1; }
}
anew() { measure "$1"; grep -q "results: the files in $2 were made at another commit" ../err; }
same() { measure "$1"; test ! -s ../err; }

same results
test "$(made train)" = 5
same results
test "$(made train) $(made collect) $(made score)" = '0 0 1'
echo 2 >code.c
commit second
anew results build/results/predict
test "$(made train) $(made collect)" = '5 1'
same results
test "$(made train)" = 0
echo 3 >code.c # changes count, too
export DIRTY=1
anew results build/results/predict
test "$(made train)" = 5
same results
test "$(made train)" = 0

# The results of the 7B shape come together at the end.
git checkout -q code.c
unset DIRTY
measure results_7b
test "$(made synth) $(made cut)" = '3 2'
for name in 7b.md 7b.tsv sparse-7b-1.md sparse-7b-1.svg sparse-7b-64.md sparse-7b-64.svg sparse-7b.tsv; do
    test -s results/$name
done
rm results/7b* results/sparse*
if FAILS=group=1 sh experiments/results_7b.sh; then exit 1; fi
for file in results/*7b*; do test ! -e "$file"; done
same results_7b
test "$(made synth) $(made cut) $(made rank)" = '0 0 0'
test -s results/7b.md
echo 4 >code.c
commit third
anew results_7b build/7b
test "$(made synth) $(made cut) $(made rank)" = '3 2 2'
