deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
printf '# deadwood plan 1\nlayer width keep\n0 64 0-31,64-94\n' >plan.tsv
status=0
deadwood cut -m m.gguf -p plan.tsv -o small.gguf || status=$?
test ! -e small.gguf
exit $status
