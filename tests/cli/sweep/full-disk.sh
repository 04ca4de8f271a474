# On a full disk a job fails and says so, what was finished stays, and with more room the same command goes on.
unshare -rm true 2>/dev/null || { echo "no file system can be mounted here" >&2; exit 77; }
cat >small.grid <<'END'
# deadwood grid 1
rate  = 0.25 0.5
dense : synth --shape tiny-llama --type F32 -o $out.gguf
plan  : rank -m $dense --metric weight --rate $rate --group 32 -o $out.tsv
cut   : cut -m $dense -p $plan -o $out.gguf
END
cat >on-disk.sh <<'END'
set -e
mount -t tmpfs -o size=2m none disk
status=0
deadwood-sweep small.grid -o disk/made --keep all -q 2>err || status=$?
test "$status" = 1
grep -q "failed: deadwood-cut: cannot write .*: No space left on device" err
test "$(ls disk/made/dense-*.gguf disk/made/plan-*.tsv | wc -l)" = 3
test -z "$(compgen -G 'disk/made/*.part')"
dense=$(stat -c %Y.%s disk/made/dense-*.gguf)
mount -o remount,size=40m none disk
deadwood-sweep small.grid -o disk/made --keep all -q
test "$(ls disk/made/*.gguf | wc -l)" = 3
test "$(stat -c %Y.%s disk/made/dense-*.gguf)" = "$dense"
END
mkdir disk
unshare -rm bash on-disk.sh
