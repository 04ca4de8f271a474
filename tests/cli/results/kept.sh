# Models of an interrupted run are kept while commit and changes are the same, and made anew otherwise, with programs that answer at once.
command -v git >/dev/null || { echo "git is not installed" >&2; exit 77; }
unset DIRTY
mkdir -p tree/experiments tree/results tree/build
cp "$ROOT"/experiments/results.sh "$ROOT"/experiments/clean_tree.sh tree/experiments
cat >tree/build/deadwood <<'END'
#!/bin/sh
echo "$*" >>"$RAN"
for word; do
    case $last in -o | --report | --plot) [ "$1" = sweep ] || [ "$word" = - ] || echo "$*" >"$word" ;; esac
    last=$word
done
END
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
