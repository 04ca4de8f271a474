# A chat: Ctrl-C ends the answer and then the chat, and a full context is said in words that help.
cp -r "$ROOT/experiments/mini" chat-model
cat >chat-model/tokenizer_config.json <<'JSON'
{"bos_token": null, "eos_token": "<|endoftext|>",
 "chat_template": "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"}
JSON
deadwood convert chat-model -o chat.gguf -q
status=0
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
deadwood generate -m mini.gguf --chat -p hello >out 2>err || status=$?
test "$status" = 1
grep -q "'mini.gguf' has no chat template, so it is no chat model; run without --chat" err

# One message from standard input is the message of -p.
deadwood generate -m chat.gguf --chat -p 'Say a word' -n 8 --temp 0 -q >wanted
echo 'Say a word' | deadwood generate -m chat.gguf --chat -p - -n 8 --temp 0 -q | cmp wanted -
printf 'Say a word\n\n' | deadwood generate -m chat.gguf --chat -n 8 --temp 0 -q | cmp wanted - # an empty line is no message

# Each line is a message; the third does not fit any more.
status=0
printf 'one\ntwo\nthree\n' | deadwood generate -m chat.gguf --chat -n 20 -c 45 --temp 0 >out 2>err || status=$?
test "$status" = 1
grep -q 'the context is full: the conversation holds [0-9]* of its 45 positions and this message needs [0-9]* more; begin a new chat' err

# An answer that ends by its length is a part of the conversation, its last token too.
status=0
printf 'one\n' | deadwood generate -m chat.gguf --chat -n 5 --temp 0 >out 2>err
n=$(($(sed -n 's/.*prompt \([0-9]*\) tokens.*/\1/p' err) + 5))
printf 'one\ntwo\n' | deadwood generate -m chat.gguf --chat -n 5 -c $((n + 2)) --temp 0 >out 2>err || status=$?
test "$status" = 1
grep -q "the conversation holds $n of its $((n + 2)) positions" err

# Near-uniform tokens: the model practically never ends an answer itself.  The signal of Ctrl-C, which a shell's background process ignores unless it is told otherwise.
waits() { for _ in $(seq 300); do "$@" && return; sleep 0.02; done; echo "waited for: $*"; cat out err; exit 1; }
longer() { [ "$(stat -c %s out)" -gt "$1" ]; }
mkfifo messages
perl -e '$SIG{INT} = "DEFAULT"; exec @ARGV' deadwood-generate -m chat.gguf --chat -n 0 -c 60000 --temp 100 --top-k 0 --top-p 1 --min-p 0 <messages >out 2>err &
chat=$!
exec 3>messages
echo 'Tell a story' >&3
waits longer 50
kill -INT $chat
waits grep -q 'answer ended; Ctrl-C or Ctrl-D now ends the chat' err
size=$(stat -c %s out)
echo 'Tell another one' >&3
waits longer $((size + 50))
kill -INT $chat
sleep 0.2
kill -INT $chat
status=0
wait $chat || status=$?
test "$status" = 130

# At a terminal a sign shows where to type; in a pipe there is none (above: the output is compared).
script -qec true /dev/null >/dev/null 2>&1 || exit 0 # no such program, or no pseudo-terminals
{ echo hello; sleep 3; } | script -qec "deadwood-generate -m chat.gguf --chat -n 4 --temp 0 -q" /dev/null >terminal 2>&1 || true
grep -q '> ' terminal || { echo "no sign at a terminal"; cat terminal; exit 1; }
