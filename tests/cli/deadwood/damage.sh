# What is damaged, or belongs to something else, costs one clear line and no file.  A row: status, words, command; what a
# command would make is called "made".
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
deadwood synth --shape tiny-llama --type F32 --seed 2 -o other.gguf -q
deadwood synth --shape tiny-llama --type Q8_0 -o q8.gguf -q
deadwood synth --shape mini --type Q4_0 -o mini.gguf -q
head -c 4000 "$ROOT/README.md" >text.txt
deadwood collect -m m.gguf -f text.txt -c 64 --windows 2 -o m.h5 --export-imatrix m.imatrix -q
deadwood rank -m m.gguf -s m.h5 --metric energy --rate 0.5 --group 32 -o m.plan -q
# The same weights with another tokenizer.
perl -0777 -pe 's/tokenizer\.ggml\.bos_token_id/tokenizer.ggml.bos_token_iD/' m.gguf >tokenizer.gguf
if cmp -s m.gguf tokenizer.gguf; then exit 1; fi
# A gated model, its traces, one with predictors; a threshold that is no number; a predictor without a tensor.
deadwood gate -m m.gguf -s m.h5 --rule cats --activity 0.3 -o gated.gguf -q
deadwood trace -m gated.gguf -f text.txt -c 32 --tokens 128 -o m.traces -q
deadwood train -m gated.gguf -x m.traces --rank 16 --epochs 1 -o predicted.gguf -q >table
deadwood synth --shape tiny-llama --type F32 --gate -o other-gated.gguf -q
perl -0777 -pe 's/tokenizer\.ggml\.bos_token_id/tokenizer.ggml.bos_token_iD/' gated.gguf >gated-tokenizer.gguf
perl -0777 -pe 's/(deadwood\.gate\.threshold.{16})..../$1\x00\x00\xc0\x7f/s' gated.gguf >nan.gguf
perl -0777 -pe 's/blk\.0\.ffn_pred_b\.bias/blk.0.ffn_pred_b.biaX/' predicted.gguf >lacking.gguf
for changed in gated-tokenizer nan; do
    if cmp -s gated.gguf $changed.gguf; then exit 1; fi
done
for file in m.gguf m.h5 m.plan m.imatrix gated.gguf m.traces; do
    head -c $(($(stat -c %s $file) / 2)) $file >half.$file
    : >empty.$file
done
plan() {
    printf '# deadwood plan 1\n# model %s sha256 %s\nlayer width keep\n' "$1" "$(sha256sum <"$1" | cut -c-64)"
    for i in 0 1 2 3; do echo "$i $2 $3"; done
}
plan m.gguf 0 none >none.plan
plan q8.gguf 33 0-32 >odd.plan
plan m.gguf 64 0-63 | head -n 5 >two-layers.plan
plan m.gguf 64 100-163 >beyond.plan
printf '* Q4_K\n' >whole.recipe
printf '/attn( Q4_0\n' >wrong.recipe

bad=0
refused() {
    local wanted=$1 words=$2 status=0
    shift 2
    deadwood "$@" >out 2>err </dev/null || status=$?
    if [ "$status" != "$wanted" ] || [ "$(wc -l <err)" != 1 ] || ! grep -q "^deadwood-$1: " err || ! grep -qF -- "$words" err ||
        compgen -G 'made*' >/dev/null; then
        echo "exit status $status, wanted $wanted and '$words': $*"
        cat err
        ls
        rm -f made*
        bad=1
    fi
}

# of another model, shape or tokenizer
refused 1 'made for another model'         cut -m other.gguf -p m.plan -o made
refused 1 'made for another model'         cut -m tokenizer.gguf -p m.plan -o made
refused 1 "2 layers, the model 4"          cut -m m.gguf -p two-layers.plan -o made
refused 1 'does not exist'                 cut -m m.gguf -p beyond.plan -o made
refused 1 'another model'                  rank -m other.gguf -s m.h5 --metric energy --rate 0.5 -o made
refused 1 'another model'                  rank -m tokenizer.gguf -s m.h5 --metric energy --rate 0.5 -o made
refused 1 'another model'                  collect -m other.gguf -s m.h5 -o made
refused 1 'another model'                  requant -m other.gguf -s m.h5 --type Q4_0 -o made
refused 1 'm.imatrix'                      collect -m mini.gguf --import-imatrix m.imatrix -o made
refused 1 'another model'                  requant -m mini.gguf --lossy-twice -s m.imatrix --type Q4_1 -o made
refused 1 'different vocabularies'                       score -m m.gguf --base mini.gguf -f text.txt -c 64 --no-speed -q -o made
refused 1 'another model'                  gate -m other.gguf -s m.h5 --rule cats --activity 0.3 -o made
refused 1 'another model'                  gate -m tokenizer.gguf -s m.h5 --rule cats --activity 0.3 -o made
refused 1 'another model'                  train -m other-gated.gguf -x m.traces -o made
refused 1 'another model'                  train -m gated-tokenizer.gguf -x m.traces -o made

# gates that are none, or stand already
refused 1 'is not gated'                   trace -m m.gguf -f text.txt -o made
refused 1 'is not gated'                   train -m m.gguf -x m.traces -o made
refused 1 'is gated already'               gate -m gated.gguf -s m.h5 --rule cats --activity 0.3 -o made
refused 1 "threshold' is nan for layer 0"  trace -m nan.gguf -f text.txt -o made
refused 1 "threshold' is nan for layer 0"  train -m nan.gguf -x m.traces -o made
refused 1 "threshold' is nan for layer 0"  score -m nan.gguf -f text.txt -o made
refused 1 "ffn_pred_b.bias' is missing"    trace -m lacking.gguf -f text.txt -o made
refused 1 "ffn_pred_b.bias' is missing"    generate -m lacking.gguf -p a -q
refused 1 'holds no traces'                train -m gated.gguf -x m.h5 -o made

# widths that cannot be
refused 1 'keeps no neuron'                cut -m m.gguf -p none.plan -o made
refused 1 'no whole number of Q8_0 blocks' cut -m q8.gguf -p odd.plan -o made
refused 1 'do not fill Q8_0 blocks'        rank -m q8.gguf --metric weight --rate 0.3 --multiple 1 -o made
refused 2 'rate 1 leaves no neuron'        rank -m m.gguf --metric weight --rate 1 -o made
refused 1 'one must stay'                  rank -m m.gguf -s m.h5 --metric energy --rate 0 --drop-layers 4 -o made
refused 1 'Q4_K'                           requant -m m.gguf --recipe whole.recipe -o made
refused 1 'wrong.recipe'                   requant -m m.gguf --recipe wrong.recipe -o made

# cut off, or empty
for part in half empty; do
    refused 1 "'$part.m.gguf'"             inspect $part.m.gguf
    refused 1 "'$part.m.gguf'"             generate -m $part.m.gguf -p a -q
    refused 1 "'$part.m.gguf'"             score -m $part.m.gguf -f text.txt -q -o made
    refused 1 "'$part.m.gguf'"             collect -m $part.m.gguf -f text.txt -q -o made
    refused 1 "'$part.m.gguf'"             requant -m $part.m.gguf --type Q4_0 -q -o made
    refused 1 "'$part.m.h5'"               inspect $part.m.h5
    refused 1 "'$part.m.plan'"             inspect $part.m.plan
    refused 1 "'$part.m.h5'"               rank -m m.gguf -s $part.m.h5 --metric energy --rate 0.5 -o made
    refused 1 "'$part.m.h5'"               collect -m m.gguf -s $part.m.h5 -o made
    refused 1 "'$part.m.h5'"               requant -m m.gguf -s $part.m.h5 --type Q4_0 -o made
    refused 1 "'$part.m.h5'"               gate -m m.gguf -s $part.m.h5 --rule cats --activity 0.3 -o made
    refused 1 "'$part.gated.gguf'"         trace -m $part.gated.gguf -f text.txt -q -o made
    refused 1 "'$part.gated.gguf'"         train -m $part.gated.gguf -x m.traces -o made
    refused 1 "'$part.m.traces'"           train -m gated.gguf -x $part.m.traces -o made
    refused 1 "'$part.m.plan'"             cut -m m.gguf -p $part.m.plan -o made
    refused 1 "'$part.m.imatrix'"          requant -m m.gguf -s $part.m.imatrix --type Q4_0 -o made
    refused 1 "'$part.m.imatrix'"          collect -m m.gguf --import-imatrix $part.m.imatrix -o made
done
exit $bad
