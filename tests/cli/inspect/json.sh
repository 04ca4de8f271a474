# --json has all that the summary says: also what tells a gated model from its parent.
deadwood synth --shape tiny-qwen2 --type F16 -o m.gguf -q
deadwood synth --shape tiny-qwen2 --type F16 --gate --group 32 -o gated.gguf -q
deadwood inspect m.gguf --json >m.json
for part in '"name":"' '"activation":"silu"' '"bits_per_weight":' '"rope_scaling":null' '"n_ff_cold":null' '"gate":null' '"types":\[{"type":"[A-Z0-9]*","tensors":'; do
    grep -q "$part" m.json
done
deadwood inspect gated.gguf --json | grep -q '"gate":{"rule":"[a-z-]*","group":32,"layers":4,"kept_dense":0,"with_predictors":0}'
deadwood inspect gated.gguf | grep -q '^gate .*, groups of 32, in 4 layers, 0 of them kept dense, 0 with predictors$'
