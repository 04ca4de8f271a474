# `make bench`: what it measures, refuses, keeps and prints, with programs that answer at once instead of measuring.
command -v git >/dev/null || { echo "git is not installed" >&2; exit 77; }
unset DW_STOCK DIRTY CELLS T
mkdir -p tree/experiments tree/results tree/build stock
cp "$ROOT"/experiments/bench.sh "$ROOT"/experiments/bench.awk "$ROOT"/experiments/clean_tree.sh tree/experiments
: >stock/libllama.so
cat >tree/experiments/bench.cells <<'END'
# cell        kind      model      work         level   pages   depth  seq  busy  pairs  seconds  ratio  share  precision  quick
decode        versus    7b-q4_0    decode       best    mapped  0      1    0     11     45       1.0    0.95   -          -
huge          versus    7b-q4_0    decode       best    huge    0      1    0     11     45       1.0    0.95   -          -
slow          versus    base-q4_0  prefill      best    mapped  0      1    0     21     30       4      -      -          yes
rounded       versus    base-f16   perplexity   best    mapped  0      1    0     21     30       1.6    -      int8       -
bf16          versus    base-f16   prefill      best    mapped  0      1    0     21     30       1.6    -      bf16       -
forced        versus    base-q4_0  prefill      avx2    mapped  0      1    0     21     30       1.6    -      -          -
same          versus    base-q4_0  prefill      avx512  mapped  0      1    0     21     30       1.5    -      -          -
lacking       versus    base-q4_0  prefill      amx     mapped  0      1    0     21     30       1.5    -      -          -
busy          versus    base-q4_0  decode       best    mapped  0      1    1     11     30       -      0.42   -          -
gate          sparse    7b         Q4_0         best    -       0      1    0     20     -        -      0.9    -          -
sampling      sampling  7b-q4_0    decode       best    -       0      1    0     200    -        -      0.01   -          -
collect       collect   base-bf16  collect      best    -       512    1    0     60     -        -      0.88   -          -
deep          versus    7b-q4_0    decode       best    mapped  8192   1    0     11     45       1.15   -      -          -
filled        fill      7b-q4_0    deep         best    mapped  8192   1    0     1      -        4      -      -          -
END
cat >tree/build/deadwood <<'END'
#!/bin/sh
echo "deadwood $*" >>"$RAN"
tool=$1 depth=0 sequences=1 busy=0 level=best fill=- pages=mapped precision=int8
for word; do
    case $last in -m) model=$(basename "$word") ;; -o) echo >"$word" ;; --what) work=$word ;; --depth) depth=$word ;; --sequences) sequences=$word ;;
    --compete) busy=$word ;; --level) level=$word ;; --pairs) pairs=$word ;; --precision) precision=$word ;; esac
    [ "$word" != --huge-pages ] || pages='huge pages'
    last=$word
done
[ $depth = 0 ] || fill=80
case $tool in
limits) printf '# 2 threads, kernels avx512, 3 repeats\nwhat\tvariant\tthreads\tmedian\nread\tx\t2\t39\nwall\tbest\t2\t40\n' ;;
versus)
    [ "$model" != "$FAILS" ] || exit 1
    line() { printf '2026-01-01T00:00:00Z\tcpu, 2\t%s\t%s\t%s\t512\t%s\t2\t%s\t%s\t%s\t%s\t20\t10\t2.0\t1.59\t2.2\t%s\t%s\t40\t40\tavx512\t0.5.0 cpu.so\t%s\t%s\tflash off\t7\t900\t4000\n' "$COMMIT" "$model" "$work" "$pairs" $level $depth $sequences $1 $2 $fill $precision "$pages"; }
    printf 'date\tmachine\tcommit\tmodel\twork\tlap\tpairs\tthreads\tlevel\tdepth\tsequences\tbusy_others\town_tok_s\tstock_tok_s\tratio\tratio_low\tratio_high\town_kept\town_fill_tok_s\tstock_fill_tok_s\town_gb_s\town_kernels\tstock_version\town_precision\town_setting\tstock_setting\town_load_ms\town_rss_after_mb\tfile_mb\n'
    line 0 -
    [ "$busy" = 0 ] || line 1 0.41 ;;
esac
END
cat >tree/build/bench_sparse <<'END'
#!/bin/sh
printf '50\t64\tdense\t2\t2\t2\t1\t0.5\t1\n50\t64\tfused\t1.1\t1\t1.2\t1\t0.91\t1.4\n'
END
cat >tree/build/bench_sampler <<'END'
#!/bin/sh
printf 'kind\tus\ngreedy\t9999\ntop-k\t400\ntop-p\t1000\n'
END
cat >tree/build/bench_collect <<'END'
#!/bin/sh
echo 'bare 1.0 ms, collect 1.1 ms a window of 512; speed 0.900 [0.890, 0.910] of bare, 60 pairs'
END
chmod +x tree/build/*
cd tree
export RAN=$PWD/../ran GIT_CONFIG_GLOBAL=/dev/null FAILS= CPUINFO=/dev/null
echo build >.gitignore
git init -q .
git -c user.name=a -c user.email=a@b add -A
git -c user.name=a -c user.email=a@b commit -qm first
export COMMIT=$(git describe --always --abbrev=12)

bench() { env "$@" >../out 2>../err || echo "exit status $?"; }
ran() { grep -c "$1" "$RAN" || true; }

# Without upstream's libraries, and of a changed tree, nothing is measured.
test "$(bench sh experiments/bench.sh)" = 'exit status 1'
grep -q 'versus --fetch' ../err
test ! -e "$RAN"
export DW_STOCK=$PWD/../stock
echo '#' >>experiments/bench.cells
test "$(bench sh experiments/bench.sh)" = 'exit status 1'
grep -q 'give DIRTY=1' ../err
test ! -e "$RAN"
git checkout -q .

# A cell that fails is named; the others have rows, and the same command measures only what lacks.
test "$(bench FAILS=7b-q4_0.gguf sh experiments/bench.sh)" = 'exit status 1'
tail -n 1 ../err | grep -q 'failed: decode huge sampling deep filled; the same command tries them again'
grep -q 'lacking: this machine lacks the level amx' ../err
grep -q 'bf16: this machine does not multiply BF16' ../err
: >"$RAN"
test -z "$(bench sh experiments/bench.sh)"
grep -q '^bench: .*slow: is there' ../err
test "$(ran 'versus.*--what prefill')" = 0
test "$(ran 'versus.*--what decode')" = 3
test "$(ran 'versus.*--huge-pages')" = 1
test "$(ran 'versus.*--precision')" = 0
grep -q 'versus -m build/bench/models/7b-q4_0.gguf --what decode --depth 8192 .*--pairs 11 --seconds 45.* --try build/bench/models/7b4-q4_0.gguf' "$RAN"

# --precision bf16 is measured where the CPU multiplies BF16.
echo 'flags : avx512_bf16' >../cpuinfo
: >"$RAN"
test -z "$(bench CPUINFO="$PWD/../cpuinfo" CELLS=bf16 sh experiments/bench.sh)"
test "$(ran 'versus.*--what prefill.*--precision bf16')" = 1
test -z "$(bench CELLS='slow bf16' sh experiments/bench.sh)"

# Other threads and other libraries have rows of their own; those from before stay.
: >"$RAN"
test -z "$(bench T=1 CELLS=slow sh experiments/bench.sh)"
test "$(ran 'versus.*--what prefill.* -t 1$')" = 1
echo 2 >../stock/libllama.so
test -z "$(bench CELLS=slow sh experiments/bench.sh)"
test "$(ran 'versus.*--what prefill')" = 2
: >../stock/libllama.so
test -z "$(bench CELLS=slow sh experiments/bench.sh)"
grep -q 'slow: is there' ../err
test "$(ran 'versus.*--what prefill')" = 2

# The table: bounds are judged by the lower end of the interval less 0.02; figures are those of the programs.
tsv=results/speed-avx512.tsv
column() { awk -F '\t' -v cell="$1" -v name="$2" 'NR == 1 {for (i = 1; i <= NF; i++) if ($i == name) at = i} $1 == cell {print $at}' $tsv; }
test "$(tail -n +2 $tsv | cut -f1 | tr '\n' ' ')" = 'decode huge slow rounded forced same busy gate sampling collect deep filled '
test "$(awk -F '\t' '{print NF}' $tsv | sort -u | wc -l)" = 1
test "$(column decode cell_share)" = 1.000 # 40 GB/s of 40
test "$(column decode wall_gb_s)" = 40
test "$(column busy cell_share)" = 0.41
test "$(column busy busy_others)" = 1
test "$(column forced level)" = avx2
test "$(column same level)" = best
test "$(column same want_ratio)" = 1.5
test "$(column gate cell_share)" = 0.91
test "$(column collect cell_share)" = 0.900
test "$(column sampling cell_share)" = 0.0200 # 1 ms of the 50 of a step
test "$(column filled cell_ratio)" = 2.0000
test "$(column deep commit)" = "$COMMIT"
reached() { awk -F '|' -v work="$1" 'index($2, work) == 2 {gsub(/ /, "", $12); print $12; exit}' results/speed-avx512.md; }
test "$(reached '7b-q4_0, decode ')" = yes
test "$(reached '7b-q4_0, decode, huge pages ')" = yes
test "$(reached 'base-q4_0, prefill of 512 ')" = no       # 1.59 of 4
test "$(reached 'base-f16, perplexity, int8')" = yes
test "$(reached 'base-q4_0, prefill of 512, forced avx2')" = yes # 1.59 of 1.6 less 0.02
test "$(reached 'base-q4_0, decode, beside')" = yes # 0.41 of 0.42
test "$(reached '7b-q4_0, sampling')" = no
grep -q "commit $COMMIT" results/speed-avx512.md
grep -q '^`make bench`: cpu, 2' results/speed-avx512.md # the rows' machine, then this one
grep -q 'Upstream 0.5.0' results/speed-avx512.md

# A part goes to the terminal, and so does the quick form, which measures anew.
cp results/speed-avx512.tsv ../before
: >"$RAN"
test -z "$(bench CELLS='slow gate' sh experiments/bench.sh)"
test "$(grep -c '^| ' ../out)" = 3
test -z "$(bench sh experiments/bench.sh quick)"
grep -q '^| base-q4_0, prefill of 512' ../out
test "$(ran versus)" = 1
grep -q -- '--pairs 5 --seconds 4' "$RAN"
cmp -s results/speed-avx512.tsv ../before
rm -rf .git
