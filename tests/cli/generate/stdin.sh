# The prompt comes from -p, from a file or from standard input, and gives the same text.
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
printf 'The function returns' >prompt.txt
generate() { deadwood generate -m mini.gguf -n 8 --temp 0 -q --echo "$@"; }
generate -p 'The function returns' >wanted
generate -f prompt.txt | cmp wanted -
generate -p - <prompt.txt | cmp wanted -
generate -f - <prompt.txt | cmp wanted -
# -p - takes the last line end off, as a shell does with $(...); -f - keeps every byte, as -f FILE does.
echo 'The function returns' | generate -p - | cmp wanted -
echo 'The function returns' >line.txt
generate -f line.txt >wanted
generate -f - <line.txt | cmp wanted -

failed() {
    local words=$1 status=0
    shift
    "$@" >out 2>err || status=$?
    [ "$status" = 1 ] && [ "$(wc -l <err)" = 1 ] && grep -qF -- "$words" err || { echo "exit $status, wanted '$words'"; cat err; exit 1; }
}
failed 'the prompt is empty' generate -p - </dev/null
printf 'a\377b' | failed 'the prompt on standard input is not a text in UTF-8' generate -p -
failed 'the prompt is not a text in UTF-8' generate -p "$(printf 'a\377b')"
failed 'tokens, the context 4 positions; give a larger one with -c' generate -c 4 -p 'one two three four five six seven'

# A context that is full says so; a text that the model ends does not.
deadwood generate -m mini.gguf -p 'The function returns' -n 0 -c 16 --temp 0 >out 2>err
grep -q 'the text stops here because the context of 16 positions is full; -c N gives a larger one (the model was trained on 1024)' err

# A message is UTF-8 without NUL, as a prompt is.
cp -r "$ROOT/experiments/mini" chat-model
echo '{"chat_template": "<|im_start|>"}' >chat-model/tokenizer_config.json
deadwood convert chat-model -o chat.gguf -q
for message in 'a\0b\n' 'a\377b\n'; do
    status=0
    printf "$message" | deadwood generate -m chat.gguf --chat -n 2 --temp 0 -q >out 2>err || status=$?
    test $status = 1
    grep -q 'the message is not a text in UTF-8' err
done
