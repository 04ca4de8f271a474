# A sentence says where a speed that it tells was disturbed, as the table marks it.
for name in cell gain at_speed disturbed; do sed -n "/^$name() {/,/^}/p" "$ROOT/experiments/demo.sh"; done >functions
out=.
. ./functions
table() { # table DISTURBED
    printf 'date\tmodel\ttext\tdecode_tok_s\tdisturbed\n-\tdense.gguf\t-\t100\t%s\n-\tgated.gguf\t-\t167\tno\n' "$1" >speed-listed.tsv
}
table 'cpu,load'
test "$(at_speed listed gated)" = 'at 1.67 of the dense speed (disturbed)'
table no
test "$(at_speed listed gated)" = 'at 1.67 of the dense speed'
rm speed-listed.tsv
test "$(at_speed listed gated)" = 'at a speed that was not measured'
