/* backend_cpu_pending.c - until backend_cpu.c is here, `cpu` runs the steps of `ref`.  Delete this file with its arrival. */
#include "backends/backends.h"

static size_t scratch_bytes(const dw_net *net, int n_batch, int n_ctx, int n_threads) { return dw_backend_ref.scratch_bytes(net, n_batch, n_ctx, n_threads); }
static void embed(dw_pass *p, int i, int n) { dw_backend_ref.embed(p, i, n); }
static void qkv(dw_pass *p, int l, int i, int n) { dw_backend_ref.qkv(p, l, i, n); }
static void attend(dw_pass *p, int l, int i, int n) { dw_backend_ref.attend(p, l, i, n); }
static void attn_out(dw_pass *p, int l, int i, int n) { dw_backend_ref.attn_out(p, l, i, n); }
static void ffn_neurons(dw_pass *p, int l, int i, int n) { dw_backend_ref.ffn_neurons(p, l, i, n); }
static void ffn_down(dw_pass *p, int l, int i, int n) { dw_backend_ref.ffn_down(p, l, i, n); }
static void head_norm(dw_pass *p, const float *x, float *h, int i, int n) { dw_backend_ref.head_norm(p, x, h, i, n); }
static void logits(dw_pass *p, const float *h, int m, float *y, int i, int n) { dw_backend_ref.logits(p, h, m, y, i, n); }
static void logprobs(dw_pass *p, const float *h, int m, const int32_t *t, double *y, int i, int n) { dw_backend_ref.logprobs(p, h, m, t, y, i, n); }

const dw_backend dw_backend_cpu = {
    .name = "cpu", .scratch_bytes = scratch_bytes, .embed = embed, .qkv = qkv, .attend = attend, .attn_out = attn_out,
    .ffn_neurons = ffn_neurons, .ffn_down = ffn_down, .head_norm = head_norm, .logits = logits, .logprobs = logprobs};
