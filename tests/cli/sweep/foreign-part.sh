# Of the files in its folder a sweep removes what a killed tool has left of its own jobs, and nothing that only looks like it.
printf '# deadwood grid 1\ndense : synth --shape tiny-llama --type F32 -o $out.gguf\n' >small.grid
deadwood-sweep small.grid -o made --keep all -q
dense=$(basename made/dense-*.gguf)
touch made/data.1.part made/x.h5.part made/x.gguf.dw0123456789abcdef.part "made/$dense.dw0123456789abcdef.part"
deadwood-sweep small.grid -o made --keep all -q
test -e made/data.1.part
test -e made/x.h5.part
test -e made/x.gguf.dw0123456789abcdef.part
test ! -e "made/$dense.dw0123456789abcdef.part"
# The copy of the grid in the folder can be run as well.
deadwood-sweep made/grid -o made --keep all -q
