# --json has all that the summary says: also what tells a gated model from its parent.
deadwood synth --shape tiny-qwen2 --type F16 -o m.gguf -q
deadwood synth --shape tiny-qwen2 --type F16 --gate --group 32 -o gated.gguf -q
deadwood inspect m.gguf --json >m.json
for part in '"name":"' '"activation":"silu"' '"bits_per_weight":' '"rope_scaling":null' '"n_ff_cold":null' '"gate":null' '"types":\[{"type":"[A-Z0-9]*","tensors":'; do
    grep -q "$part" m.json
done
deadwood inspect gated.gguf --json | grep -q '"gate":{"rule":"[a-z-]*","group":32,"layers":4,"kept_dense":0,"with_predictors":0}'
deadwood inspect gated.gguf | grep -q '^gate .*, groups of 32, in 4 layers, 0 of them kept dense, 0 with predictors$'

# Integers have all their digits, and a lineage that cannot be read is an error, not an empty one.
deadwood inspect m.gguf --json | grep -q '"lineage":\[{"tool":"synth"'
perl -pe 's/\{"tool":"synth"/["tool":"synth"/' m.gguf >damaged.gguf
status=0
deadwood inspect damaged.gguf --json >out 2>err || status=$?
test $status = 1
test ! -s out
grep -q "'damaged.gguf': 'deadwood.lineage' is not valid JSON" err
perl -pe 's/(qwen2\.context_length\x04\0\0\0)..../$1 . pack("V", 1234567)/se' m.gguf >long.gguf
deadwood inspect long.gguf --keys | grep -q "^qwen2.context_length	1	1234567$"
