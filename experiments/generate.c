/* generate.c - a prompt in, text out, streamed.
 *
 *     deadwood generate -m mini.gguf -p "The function returns" -n 64 --temp 0 */
#include "chat.h"
#include "kit/options.h"
#include "kit/talk.h"
#include "model/session.h"
#include "text/tokenizers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct {
    const char *model, *prompt, *prompt_file, *system;
    int n_predict, n_ctx, top_k, seed;
    double temperature, top_p, min_p;
    bool chat, echo;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"prompt", 'p', OPT_TEXT, 0, &o.prompt, NULL, "TEXT", "the prompt, or with --chat the user's message"},
    {"text", 'f', OPT_PATH, OPT_INPUT, &o.prompt_file, NULL, "TEXT", "the prompt, from a file"},
    {"n-predict", 'n', OPT_INT, 0, &o.n_predict, "128", "N", "tokens to generate at most; 0: until the context is full", .min = 0, .max = 1 << 22},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "0", "N", "positions of context; 0: the model's, at most 4096", .min = 0, .max = 1 << 22},
    {"temp", 0, OPT_REAL, 0, &o.temperature, "0.8", "X", "temperature; 0: always the likeliest token", .min = 0, .max = 100},
    {"top-k", 0, OPT_INT, 0, &o.top_k, "40", "N", "of the N likeliest tokens only; 0: all", .min = 0, .max = 1 << 24},
    {"top-p", 0, OPT_REAL, 0, &o.top_p, "0.95", "X", "of the likeliest tokens that together have probability X", .min = 0, .max = 1},
    {"min-p", 0, OPT_REAL, 0, &o.min_p, "0.05", "X", "of tokens at least X times as likely as the likeliest", .min = 0, .max = 1},
    {"seed", 0, OPT_INT, 0, &o.seed, "1", "N", "seed of the sampler: the same seed gives the same text", .min = 0, .max = 0x7fffffff},
    {"chat", 0, OPT_FLAG, 0, &o.chat, NULL, NULL, "talk in the format of the model's chat template; without -p one message a line from stdin"},
    {"system", 0, OPT_TEXT, 0, &o.system, NULL, "TEXT", "system message of a chat"},
    {"echo", 0, OPT_FLAG, 0, &o.echo, NULL, NULL, "print the prompt before the text"},
    OPT_KV, OPT_SELECT,
    OPT_COMMON_ENGINE, {0}};
// clang-format on

static const opt_program program = {
    .name = "generate",
    .summary = "text from a model",
    .usage = "-m M.gguf -p TEXT [-n N] [--temp X] [--chat]",
    .about = "Streams the continuation of a prompt to stdout and says on stderr how fast it went.  With --chat the prompt is put into "
             "the model's chat format, which is recognised from the file's template (chatml, llama2, llama3, mistral, gemma, phi3, "
             "zephyr); templates are never executed.",
    .example = "deadwood generate -m mini.gguf -p 'The function returns' -n 64 --temp 0",
    .rows = rows};

typedef struct talk { // one conversation, or one continuation
    dw_model *model;
    dw_tokenizer *tok;
    dw_session *session;
    dw_sampler *sampler;
    float *logits;
    int n_prompt, n_generated;
    double prompt_s, generate_s;
} talk;

/* Evaluates text behind what the session holds. */
static int read_text(talk *t, const char *text, size_t len, unsigned flags, dw_err *err) {
    int32_t *ids;
    size_t n;
    if (dw_tokenize(t->tok, text, len, flags, &ids, &n, err)) return -1;
    int rc = n ? 0 : dw_fail(err, "the prompt is empty; give some text");
    const int room = o.n_ctx - dw_session_n_past(t->session, 0);
    if (n > (size_t)room)
        rc = dw_fail(err, "the prompt alone has %zu tokens, the context of %d positions has room for %d; give a larger one with -c", n, o.n_ctx, room);
    const double start = dw_now();
    if (!rc) rc = dw_session_eval(t->session, &(dw_batch){.n_tokens = (int)n, .token = ids}, err);
    t->prompt_s += dw_now() - start;
    t->n_prompt += (int)n;
    free(ids);
    return rc;
}

static int put_token(const dw_tokenizer *tok, int32_t id, dw_err *err) {
    char few[256], *bytes = few;
    const size_t n = dw_token_bytes(tok, id, false, few, sizeof few);
    if (n > sizeof few) {
        if (!(bytes = dw_alloc(n, 1, "the text of a token", err))) return -1;
        dw_token_bytes(tok, id, false, bytes, n);
    }
    fwrite(bytes, 1, n, stdout);
    fflush(stdout);
    if (bytes != few) free(bytes);
    return 0;
}

/* Generates until an end token or n tokens.  Every token but the last is evaluated. */
static int write_tokens(talk *t, int n, dw_err *err) {
    const double start = dw_now();
    for (int i = 0; i < n; i++) {
        if (dw_session_logits(t->session, 0, 1, t->logits, err)) return -1;
        const int32_t id = dw_sample(t->sampler, t->logits);
        if (id < 0) return dw_fail(err, "the model '%s' computes NaN", o.model);
        if (dw_token_ends(t->tok, id)) break;
        if (put_token(t->tok, id, err)) return -1;
        t->n_generated++;
        if (i + 1 < n && dw_session_eval(t->session, &(dw_batch){.n_tokens = 1, .token = &id}, err)) return -1;
    }
    t->generate_s += dw_now() - start;
    return 0;
}

/* n_predict tokens at most, or until the context is full.  The line ends before anything is said of it. */
static int write_text(talk *t, dw_err *err) {
    const int room = o.n_ctx - dw_session_n_past(t->session, 0), n = o.n_predict && o.n_predict < room ? o.n_predict : room;
    const int rc = write_tokens(t, n, err);
    putchar('\n');
    fflush(stdout);
    if (!rc && n == room && o.n_predict != n) say("the context of %d positions is full", o.n_ctx);
    return rc;
}

static int continue_prompt(talk *t, dw_err *err) {
    char *text = NULL;
    size_t len = 0;
    if (o.prompt_file) text = dw_read_text(o.prompt_file, 64 << 20, &len, err);
    else if ((text = dw_strdup(o.prompt, err))) len = strlen(text);
    int rc = text ? read_text(t, text, len, DW_ADD_SPECIAL, err) : -1;
    if (!rc && o.echo) fwrite(text, 1, len, stdout);
    free(text);
    return rc ? rc : write_text(t, err);
}

static int take_turn(talk *t, const chat_family *f, const char *user, bool first, dw_err *err) {
    char *turn = chat_turn(f, o.system, user, first, err);
    char *text = turn ? dw_format(err, "%s%s", first ? "" : f->after_answer, turn) : NULL;
    int rc = text ? read_text(t, text, strlen(text), DW_PARSE_SPECIAL | (first ? DW_ADD_SPECIAL : 0), err) : -1;
    free(text);
    free(turn);
    return rc ? rc : write_text(t, err);
}

static int chat(talk *t, dw_err *err) {
    const dw_str template = dw_tokenizer_vocab(t->tok)->chat_template;
    const chat_family *f = chat_recognise(template);
    if (!f) return dw_fail(err, "%s '%s'; run without --chat", template.ptr ? "no known chat format in the template of" : "there is no chat template in", o.model);
    if (o.prompt) return take_turn(t, f, o.prompt, true, err);
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    for (bool first = true; !rc && getline(&line, &cap, stdin) > 0; first = false) {
        line[strcspn(line, "\n")] = 0;
        rc = take_turn(t, f, line, first, err);
    }
    free(line);
    return rc;
}

static int open_talk(talk *t, dw_pool *pool, dw_err *err) {
    t->model = dw_model_open(o.model, err);
    if (!t->model || !(t->tok = dw_tokenizer_open(dw_model_gguf(t->model), err))) return -1;
    const dw_hparams *hp = dw_model_hparams(t->model);
    if (!o.n_ctx) o.n_ctx = hp->n_ctx_train < 4096 ? hp->n_ctx_train : 4096;
    if (o.n_ctx > hp->n_ctx_train) warn("the model was trained on %d positions, %d were asked for", hp->n_ctx_train, o.n_ctx);
    dw_session_options so = {.pool = pool, .backend = tool.backend, .n_ctx = o.n_ctx, .n_out = 1};
    so.kv = tool_kv();
    so.select = tool_select()->select;
    t->session = dw_session_new(t->model, &so, err);
    if (t->session && tool_select()->is_listed && dw_session_experiment(t->session, &(dw_ffn_experiment){.gathered = true}, err)) return -1;
    t->sampler = dw_sampler_new(&(dw_sampler_options){o.temperature, o.top_k, o.top_p, o.min_p, (uint64_t)o.seed}, hp->n_vocab, err);
    t->logits = dw_alloc((size_t)hp->n_vocab, sizeof *t->logits, "logits", err);
    return t->session && t->sampler && t->logits ? 0 : -1;
}

static void check_usage(void) {
    if (o.chat && o.prompt_file) die_usage("with --chat messages come from -p or from standard input, not from -f");
    if (o.system && !o.chat) die_usage("--system is the system message of a chat; give --chat too");
    if (o.prompt && o.prompt_file) die_usage("give the prompt with -p or with -f, not with both");
    if (!o.chat && !o.prompt && !o.prompt_file) die_usage("give a prompt with -p or -f");
    if (o.prompt && !*o.prompt) die_usage("the prompt of -p is empty");
}

int main(int argc, char **argv) {
    opt_parse(&program, argc, argv);
    check_usage();
    dw_err err = {0};
    talk t = {0};
    dw_pool *pool = dw_pool_new(tool.threads, &err);
    if (!pool || open_talk(&t, pool, &err) || (o.chat ? chat(&t, &err) : continue_prompt(&t, &err))) die_err(&err);
    say("prompt %d token%s, %.1f tok/s; generated %d token%s, %.1f tok/s", t.n_prompt, plural(t.n_prompt), t.n_prompt / fmax(t.prompt_s, 1e-9),
        t.n_generated, plural(t.n_generated), t.n_generated / fmax(t.generate_s, 1e-9));
    free(t.logits);
    dw_sampler_free(t.sampler);
    dw_session_free(t.session);
    dw_tokenizer_free(t.tok);
    dw_model_close(t.model);
    dw_pool_free(pool);
    return 0;
}
