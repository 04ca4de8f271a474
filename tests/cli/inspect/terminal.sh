# What a file says of itself does not steer the terminal.
escape=$(printf '\033')
printf '# deadwood plan 1\n# metric \033[2Jweight\nlayer width keep\n0 32 0-31\n' >plan.tsv
deadwood inspect plan.tsv >out
grep -q 'metric ?\[2Jweight$' out
printf '# deadwood rows, version 1: any\nmo\033[2Jdel\tppl\na\033[2J.gguf\t9\n' >rows.tsv
deadwood inspect rows.tsv >>out
deadwood synth --shape tiny-llama --type F32 -q -o m.gguf
# Escapes in the model's name and in that of a key, the lengths being what they were.
name=$(deadwood inspect m.gguf | sed -n 's/^name  *//p')
test -n "$name"
LC_ALL=C sed "s/$name/$(echo "$name" | sed "s/./$escape/")/" m.gguf >named.gguf
if cmp -s m.gguf named.gguf; then exit 1; fi
deadwood inspect named.gguf >>out
LC_ALL=C sed "s/general.name/general${escape}name/" m.gguf >key.gguf
deadwood inspect key.gguf --keys >>out
! grep -q "$escape" out
