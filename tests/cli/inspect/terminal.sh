# What files say of themselves does not steer the terminal, in any program: controls, those of two bytes (U+009B) and
# characters that turn the direction of writing (U+202E) are printed as escapes.
escape=$(printf '\033')
csi=$(printf '\302\233')
turn=$(printf '\342\200\256')
clean() { # the file holds none of these bytes
    if LC_ALL=C grep -q "$escape\|$csi\|$turn" "$1"; then return 1; fi
}
printf "# deadwood plan 1\n# metric $escape[2Jweight $csi $turn \303\244 \344\nlayer width keep\n0 32 0-31\n" >plan.tsv
deadwood inspect plan.tsv >out
grep -qF 'metric \x1b[2Jweight \u009b \u202e ä \xe4' out
printf "# deadwood rows, version 1: any\nmo$escape[2Jdel$csi\tppl\na$turn.gguf\t9\n" >rows.tsv
deadwood inspect rows.tsv >>out
deadwood table rows.tsv >>out
deadwood synth --shape tiny-llama --type F32 --gate -q -o m.gguf
# Escapes in the model's name and in that of a key, the lengths being what they were.
name=$(deadwood inspect m.gguf | sed -n 's/^name  *//p')
test -n "$name"
LC_ALL=C sed "s/$name/$(echo "$name" | sed "s/./$escape/")/" m.gguf >named.gguf
if cmp -s m.gguf named.gguf; then exit 1; fi
deadwood inspect named.gguf >>out
LC_ALL=C sed "s/general.name/general${escape}name/" m.gguf >key.gguf
deadwood inspect key.gguf --keys >>out
# In a gate's rule, in names of models and texts, and in a message.
rule=$(deadwood inspect m.gguf --keys | sed -n 's/^deadwood.gate.rule	1	//p')
test -n "$rule"
LC_ALL=C sed "s/deadwood.gate.rule\(............\)$rule/deadwood.gate.rule\1$(echo "$rule" | sed "s/./$escape/")/" m.gguf >"a$csi.gguf"
if cmp -s m.gguf "a$csi.gguf"; then exit 1; fi
deadwood inspect "a$csi.gguf" >>out
i=0
while test $i -lt 400; do printf 'word %d ' $i; i=$((i + 1)); done >"$turn.txt"
deadwood score -m "a$csi.gguf" -f "$turn.txt" -c 64 --windows 1 --no-speed --per-layer -q -t 1 >>out
grep -qF 'a\u009b.gguf' out
grep -qF '\u202e.txt' out
deadwood score -m "a$csi.gguf" -f "$turn.txt" -c 64 --windows 1 --no-speed --json -q -t 1 >>out
deadwood score -m "$turn.gguf" -f "$turn.txt" 2>err || test $? = 1
grep -qF "'\\u202e.gguf'" err
clean err
# In the commands of a sweep.
printf "# deadwood grid 1\nx = 'a${escape}b' '$turn'\nm : convert \$x -o \$out.gguf\n" >grid
mkdir -p "a${escape}b" "$turn" # inputs that are not there are refused
deadwood sweep grid -o d --dry-run >>out
grep -qF "\$'a\\x1bb'" out
clean out
