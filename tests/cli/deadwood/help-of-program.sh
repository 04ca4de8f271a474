# `deadwood help rank` is rank's help; without a name, or for a name that is none, the list of programs helps.
deadwood-rank --help | sed 1d >wanted
deadwood help rank | sed 1d | cmp wanted -
deadwood --help rank | sed 1d | cmp wanted -
deadwood help | grep -q '^  rank '
status=0
deadwood help rnk >out 2>err || status=$?
test "$status" = 2
grep -q "there is no program 'rnk' (did you mean 'rank'?)" err
for words in 'help gate rank' 'help gate --help-man'; do
    status=0
    deadwood $words >out 2>err || status=$?
    test "$status" = 2
    test ! -s out
    grep -q "'help' takes the name of one program" err
done
