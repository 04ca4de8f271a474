# `make results` measures commits: a changed tracked file is refused by name, unless DIRTY=1 says that it does not matter.
command -v git >/dev/null || { echo "git is not installed" >&2; exit 77; }
mkdir -p tree/experiments tree/results tree/build
cp "$ROOT"/experiments/results.sh "$ROOT"/experiments/results_7b.sh "$ROOT"/experiments/clean_tree.sh tree/experiments
printf '#!/bin/sh\necho ran >>"$RAN"\nexit 9\n' >tree/build/deadwood # the first command ends the script
chmod +x tree/build/deadwood
cd tree
export RAN=$PWD/../ran GIT_CONFIG_GLOBAL=/dev/null
echo build >.gitignore
echo 1 >code.c
echo 1 >results/cut.md
git init -q .
git -c user.name=a -c user.email=a@b add -A
git -c user.name=a -c user.email=a@b commit -qm first

status_of() { local status=0; "$@" >../out 2>../err || status=$?; echo $status; }
for script in results results_7b; do
    rm -f "$RAN"
    git checkout -q .
    test "$(status_of sh experiments/$script.sh)" = 9    # a clean tree is measured
    test -s "$RAN"
    echo 2 >results/cut.md
    rm -f "$RAN"
    test "$(status_of sh experiments/$script.sh)" = 9    # old results may be half replaced
    test -s "$RAN"
    echo 2 >code.c
    rm -f "$RAN"
    test "$(status_of sh experiments/$script.sh)" = 1
    test ! -e "$RAN"
    grep -q 'give DIRTY=1' ../err
    grep -q '^ M code.c$' ../err
    if grep -q cut.md ../err; then exit 1; fi
    test "$(status_of env DIRTY=1 sh experiments/$script.sh)" = 9
    test -s "$RAN"
done
rm -rf .git "$RAN"
test "$(status_of env GIT_DIR=/nowhere sh experiments/results.sh)" = 1
test ! -e "$RAN"
grep -q 'the commit of these files is unknown' ../err
