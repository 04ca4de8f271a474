# A folder in place of a model gets the command that makes a model file of it; one without config.json is no checkpoint.
mkdir folder
head -c 3000 "$ROOT/README.md" >t.txt
for words in 'score -m folder -f t.txt --no-speed' 'score -m folder --speed-only' 'generate -m folder -p x' 'inspect folder' \
    'collect -m folder -f t.txt -o s.h5' 'rank -m folder --metric weight --rate 0.5 -o p.tsv' 'requant -m folder --type q8_0 -o q.gguf'; do
    status=0
    deadwood $words >out 2>err || status=$?
    if [ $status != 1 ] || [ "$(grep -c "'folder' is a folder; make a model file of it: deadwood convert folder -o M.gguf" err)" != 1 ]; then
        echo "$words: status $status: $(cat err)"
        exit 1
    fi
done
status=0
deadwood convert folder -o m.gguf 2>err || status=$?
test $status = 1
grep -q "'folder' is no checkpoint folder: it has no config.json" err
echo '{}' >folder/adapter_config.json
deadwood convert folder -o m.gguf 2>err && exit 1
grep -q "'folder' is an adapter (adapter_config.json) and no whole model; merge it" err
echo '{"architectures": ["MixtralForCausalLM"], "num_local_experts": 4}' >folder/config.json
deadwood convert folder -o m.gguf 2>err && exit 1
grep -q "'folder': 'MixtralForCausalLM' is a mixture of experts, which is not supported" err
