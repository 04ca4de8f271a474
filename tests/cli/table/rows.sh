# A table of rows, as it is pasted.
cat >rows.txt <<'ROWS'
date machine commit model text protocol n_ctx windows tokens_scored base nll_nats ppl ppl_se ln_ratio ln_ratio_se kl_mean kl_se top1_agree top1_se bits_per_weight file_bytes prefill_tok_s decode_tok_s threads backend disturbed leak metric rate type verdict note
2026-03-01T10:00:00Z cpu,2 0123abc mini-cut.gguf code.txt llama 512 8 2040 mini.gguf 3.4 29.964 1.1 0.55 0.021 0.52 0.011 0.561 0.011 16.1 20130000 9100 1480 2 cpu-amx no no energy 0.25 - - -
2026-03-01T10:00:00Z cpu,2 0123abc mini-cut.gguf math.txt llama 512 6 1530 mini.gguf 3.6 36.598 1.5 0.61 0.025 0.58 0.014 0.532 0.013 16.1 20130000 9100 1480 2 cpu-amx no no energy 0.25 - - -
2026-03-01T10:00:00Z cpu,2 0123abc mini-cut.gguf * llama 512 14 3570 mini.gguf 3.5 33.115 0.91 0.58 0.016 0.55 0.009 0.5465 0.0085 16.1 20130000 9100 1480 2 cpu-amx no no energy 0.25 - discard -
2026-03-01T10:00:00Z cpu,2 0123abc mini.gguf code.txt llama 512 8 2040 mini.gguf 2.85 17.288 0.6 0 0 0 0 1 0 16.06 24730000 8300 1250 2 cpu-amx cpu - - - - - -
2026-03-01T10:00:00Z cpu,2 0123abc mini.gguf math.txt llama 512 6 1530 mini.gguf 2.99 19.886 0.8 0 0 0 0 1 0 16.06 24730000 8300 1250 2 cpu-amx cpu - - - - - -
2026-03-01T10:00:00Z cpu,2 0123abc mini.gguf * llama 512 14 3570 mini.gguf 2.92 18.541 0.49 0 0 0 0 1 0 16.06 24730000 8300 1250 2 cpu-amx cpu - - - - - -
2026-03-02T10:00:00Z cpu,2 0123abc mini-q2.gguf * llama 512 14 3570 mini.gguf 7.2 1339.43 38 4.3 0.05 4.1 0.03 0.08 0.004 2.6 4100000 7000 3100 2 cpu-amx no no - - affine2 collapsed repeats
ROWS
tr ' ' '\t' <rows.txt >rows.tsv
deadwood table rows.tsv
