/* generate.c - a prompt in, text out, streamed.
 *
 *     deadwood generate -m mini.gguf -p "The function returns" -n 64 --temp 0
 *     echo "The function returns" | deadwood generate -m mini.gguf -p -
 *
 * In a chat on a terminal Ctrl-C ends the answer.  A second Ctrl-C before the answer has stopped, or one while the
 * program waits for a message, ends the chat. */
#include "chat.h"
#include "kit/memory.h"
#include "kit/options.h"
#include "kit/talk.h"
#include "model/session.h"
#include "text/tokenizers.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    const char *model, *prompt, *prompt_file, *system, *precision;
    int n_predict, n_ctx, top_k, seed;
    double temperature, top_p, min_p;
    bool chat, echo;
} o;

// clang-format off
static const opt_row rows[] = {
    {"model", 'm', OPT_PATH, OPT_REQUIRED | OPT_INPUT, &o.model, NULL, "FILE", "the model (GGUF)"},
    {"prompt", 'p', OPT_TEXT, 0, &o.prompt, NULL, "TEXT", "the prompt, or with --chat the user's message; -: standard input, without its last line end"},
    {"text", 'f', OPT_PATH, OPT_INPUT | OPT_STDIN, &o.prompt_file, NULL, "TEXT", "the prompt, from a file; -: standard input"},
    {"n-predict", 'n', OPT_INT, 0, &o.n_predict, "128", "N", "tokens to generate at most; 0: until the context is full", .min = 0, .max = 1 << 22},
    {"ctx", 'c', OPT_INT, 0, &o.n_ctx, "0", "N", "positions of context; 0: the model's, at most 4096", .min = 0, .max = 1 << 22},
    {"temp", 0, OPT_REAL, 0, &o.temperature, "0.8", "X", "temperature; 0: always the likeliest token", .min = 0, .max = 100},
    {"top-k", 0, OPT_INT, 0, &o.top_k, "40", "N", "choose among the N likeliest tokens; 0: among all", .min = 0, .max = 1 << 24},
    {"top-p", 0, OPT_REAL, 0, &o.top_p, "0.95", "X", "choose among the likeliest tokens that together have probability X", .min = 0, .max = 1},
    {"min-p", 0, OPT_REAL, 0, &o.min_p, "0.05", "X", "choose among tokens at least X times as likely as the likeliest", .min = 0, .max = 1},
    {"seed", 0, OPT_INT, 0, &o.seed, "1", "N", "seed of the sampler: the same seed gives the same text; with a gated model only if --threads is the same and --select is not auto", .min = 0, .max = 0x7fffffff},
    {"chat", 0, OPT_FLAG, 0, &o.chat, NULL, NULL, 
     "talk in the format of the model's chat template; without -p each line of standard input is a message"},
    {"system", 0, OPT_TEXT, 0, &o.system, NULL, "TEXT", "system message of a chat"},
    {"echo", 0, OPT_FLAG, 0, &o.echo, NULL, NULL, "print the prompt before the text"},
    {"precision", 0, OPT_CHOICE, 0, &o.precision, "int8", "NAME",
     "how finely products of more than 8 tokens are rounded", OPT_CHOICES_HELP(tool_precision_names, tool_precision_name)},
    OPT_KV, OPT_SELECT, OPT_HUGE_PAGES,
    OPT_COMMON_ENGINE, {0}};
// clang-format on

static const opt_program program = {
    .name = "generate",
    .summary = "text from a model",
    .usage = "-m M.gguf -p TEXT [-n N] [--temp X] [--chat]",
    .about =
        "Streams the continuation of a prompt to stdout and says on stderr how fast it went.  With --chat the prompt "
        "is put into the model's chat format, which is recognised from the file's template (chatml, llama2, llama3, "
        "mistral, gemma, phi3, zephyr); templates are never executed.  In a chat on a terminal > asks for a message, "
        "Ctrl-C ends the answer, and a second Ctrl-C or Ctrl-D ends the chat.",
    .example = "deadwood generate -m mini.gguf -p 'The function returns' -n 64 --temp 0\n"
               "git diff | deadwood generate -m mini.gguf -f -\n"
               "deadwood generate -m qwen2.5-0.5b-instruct.gguf --chat",
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

/* ---- Ctrl-C ends an answer ------------------------------------------------------------------------------------ */

static volatile sig_atomic_t is_interrupted;
static struct sigaction ends_program; // what a signal does outside of answers

static void note_interrupt(int sig) {
    (void)sig;
    is_interrupted = 1;
    sigaction(SIGINT, &ends_program, NULL); // the next one ends the chat
}

static void begin_answer(void) {
    is_interrupted = 0;
    struct sigaction note = {.sa_handler = note_interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGINT, &note, &ends_program);
}

static void end_answer(void) { sigaction(SIGINT, &ends_program, NULL); }

/* ---- reading -------------------------------------------------------------------------------------------------- */

enum { MAX_PROMPT_BYTES = 64 << 20 };

/* Standard input to its end, with a NUL; free(). */
static char *read_stdin(size_t *size, dw_err *err) {
    char *text = NULL;
    size_t cap = 0, n = 0, got = 1;
    while (got && n <= MAX_PROMPT_BYTES) {
        if (dw_grow(&text, &cap, n + 65536, 1, "a prompt", err)) break;
        n += got = fread(text + n, 1, 65535, stdin);
    }
    if (!got && !ferror(stdin) && n <= MAX_PROMPT_BYTES) {
        text[*size = n] = 0;
        return text;
    }
    if (!got && ferror(stdin)) dw_fail(err, "cannot read standard input: %s", strerror(errno));
    else if (n > MAX_PROMPT_BYTES)
        dw_fail(err, "the prompt on standard input has over %d bytes", MAX_PROMPT_BYTES);
    free(text);
    return NULL;
}

/* The prompt of -p or -f as it was given; free(). */
static char *read_prompt(size_t *size, dw_err *err) {
    const bool is_stdin = !strcmp(o.prompt ? o.prompt : o.prompt_file, "-");
    if (!is_stdin && o.prompt_file) return dw_read_text(o.prompt_file, MAX_PROMPT_BYTES, size, err);
    char *text = is_stdin ? read_stdin(size, err) : dw_strdup(o.prompt, err);
    if (text && !is_stdin) *size = strlen(text);
    if (text && is_stdin && o.prompt && *size && text[*size - 1] == '\n') text[--*size] = 0;
    if (!text || dw_is_utf8(text, *size)) return text;
    free(text);
    dw_fail(err, "the prompt%s is not a text in UTF-8", is_stdin ? " on standard input" : "");
    return NULL;
}

/* Says that n tokens do not fit after those that the session holds. */
static int fail_full(int held, size_t n, dw_err *err) {
    if (!held)
        return dw_fail(err, "the prompt has %zu tokens, the context %d positions; give a larger one with -c", n,
                       o.n_ctx);
    return dw_fail(err, "the context is full: the conversation holds %d of its %d positions and this message needs %zu "
                        "more; begin a new chat, or give a larger context with -c", held, o.n_ctx, n);
}

/* Evaluates text after what the session holds. */
static int read_text(talk *t, const char *text, size_t len, unsigned flags, dw_err *err) {
    int32_t *ids;
    size_t n;
    if (dw_tokenize(t->tok, text, len, flags, &ids, &n, err)) return -1;
    const int held = dw_session_n_past(t->session, 0);
    int rc = n ? 0 : dw_fail(err, "the prompt is empty; give some text");
    if (!rc && n > (size_t)(o.n_ctx - held)) rc = fail_full(held, n, err);
    const double start = dw_now();
    if (!rc) rc = dw_session_eval(t->session, &(dw_batch){.n_tokens = (int)n, .token = ids}, err);
    t->prompt_s += dw_now() - start;
    t->n_prompt += (int)n;
    free(ids);
    return rc;
}

/* ---- writing -------------------------------------------------------------------------------------------------- */

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

typedef enum end_of_text { ENDED_BY_MODEL, ENDED_BY_LENGTH, ENDED_BY_USER } end_of_text;

/* Generates until an end token, n tokens or an interrupt.  The last token is evaluated in a chat only, which goes on. */
static int write_tokens(talk *t, int n, end_of_text *end, dw_err *err) {
    const double start = dw_now();
    *end = ENDED_BY_LENGTH;
    for (int i = 0; i < n && *end == ENDED_BY_LENGTH; i++) {
        if (dw_session_logits(t->session, 0, 1, t->logits, err)) return -1;
        const int32_t id = dw_sample(t->sampler, t->logits);
        if (id < 0) return dw_fail(err, "the model '%s' computes NaN", o.model);
        if (is_interrupted || dw_token_ends(t->tok, id)) {
            *end = is_interrupted ? ENDED_BY_USER : ENDED_BY_MODEL;
            break;
        }
        if (put_token(t->tok, id, err)) return -1;
        t->n_generated++;
        const bool goes_on = i + 1 < n || o.chat;
        if (goes_on && dw_session_eval(t->session, &(dw_batch){.n_tokens = 1, .token = &id}, err)) return -1;
    }
    t->generate_s += dw_now() - start;
    return 0;
}

/* n_predict tokens at most, or until the context is full.  The line ends before anything is said of it. */
static int write_text(talk *t, dw_err *err) {
    const int room = o.n_ctx - dw_session_n_past(t->session, 0);
    const int n = o.n_predict && o.n_predict < room ? o.n_predict : room;
    end_of_text end;
    const int rc = write_tokens(t, n, &end, err);
    putchar('\n');
    fflush(stdout);
    if (rc) return rc;
    if (end == ENDED_BY_LENGTH && o.n_predict != n)
        say("the text stops here because the context of %d positions is full; -c N gives a larger one (the model was "
            "trained on %d)", o.n_ctx, dw_model_hparams(t->model)->n_ctx_train);
    if (end == ENDED_BY_USER) say("answer ended; Ctrl-C or Ctrl-D now ends the chat");
    return 0;
}

static int continue_prompt(talk *t, dw_err *err) {
    size_t len = 0;
    char *text = read_prompt(&len, err);
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

/* The next message without its line end, or NULL at the end of input.  A person at a terminal sees where to type. */
static char *next_message(char **line, size_t *cap, size_t *size) {
    if (isatty(STDIN_FILENO)) fputs("> ", stderr);
    const ssize_t n = getline(line, cap, stdin);
    if (n <= 0) return NULL;
    *size = (size_t)n - ((*line)[n - 1] == '\n');
    (*line)[*size] = 0;
    return *line;
}

static bool is_message(const char *text, size_t size) { return !memchr(text, 0, size) && dw_is_utf8(text, size); }

/* One answer for each line of standard input. */
static int talk_in_turns(talk *t, const chat_family *f, dw_err *err) {
    char *line = NULL, *message;
    size_t cap = 0, size;
    int rc = 0;
    for (bool first = true; !rc && (message = next_message(&line, &cap, &size));) {
        if (!size) continue;
        begin_answer();
        rc = is_message(message, size) ? take_turn(t, f, message, first, err)
                                       : dw_fail(err, "the message is not a text in UTF-8");
        end_answer();
        first = false;
    }
    if (isatty(STDIN_FILENO) && !rc) fputs("\n", stderr);
    free(line);
    return rc;
}

static int chat(talk *t, dw_err *err) {
    const dw_str template = dw_tokenizer_vocab(t->tok)->chat_template;
    const chat_family *f = chat_recognise(template);
    if (!f && template.ptr)
        return dw_fail(err, "this program does not know the format of the chat template in '%s'; run without --chat",
                       o.model);
    if (!f) return dw_fail(err, "'%s' has no chat template, so it is no chat model; run without --chat", o.model);
    if (!o.prompt) return talk_in_turns(t, f, err);
    size_t len = 0;
    char *message = read_prompt(&len, err);
    const int rc = message ? take_turn(t, f, message, true, err) : -1;
    free(message);
    return rc;
}

static int open_talk(talk *t, dw_pool *pool, dw_err *err) {
    t->model = dw_model_open(o.model, err);
    if (!t->model || (tool.huge_pages && kit_huge_pages(t->model, pool, err))) return -1;
    if (!(t->tok = dw_tokenizer_open(dw_model_gguf(t->model), err))) return -1;
    const dw_hparams *hp = dw_model_hparams(t->model);
    if (!o.n_ctx) o.n_ctx = hp->n_ctx_train < 4096 ? hp->n_ctx_train : 4096;
    if (o.n_ctx > hp->n_ctx_train)
        warn("the model was trained on %d positions, %d were asked for", hp->n_ctx_train, o.n_ctx);
    dw_session_options so = {.pool = pool, .backend = tool.backend, .n_ctx = o.n_ctx, .n_out = 1};
    so.kv = tool_kv();
    so.precision = tool_precision(o.precision);
    so.select = tool_select()->select;
    t->session = dw_session_new(t->model, &so, err);
    if (t->session && tool_select()->is_listed &&
        dw_session_experiment(t->session, &(dw_ffn_experiment){.gathered = true}, err))
        return -1;
    t->sampler = dw_sampler_new(&(dw_sampler_options){o.temperature, o.top_k, o.top_p, o.min_p, (uint64_t)o.seed},
                                hp->n_vocab, err);
    t->logits = dw_alloc((size_t)hp->n_vocab, sizeof *t->logits, "logits", err);
    return t->session && t->sampler && t->logits ? 0 : -1;
}

static void check_usage(void) {
    if (o.chat && o.prompt_file) die_usage("with --chat messages come from -p or from standard input, not from -f");
    if (o.chat && o.echo) die_usage("--echo prints the prompt of -p or -f before the text; leave it out with --chat");
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
    say("prompt %d token%s, %.1f tok/s; generated %d token%s, %.1f tok/s", t.n_prompt, plural(t.n_prompt),
        t.n_prompt / fmax(t.prompt_s, 1e-9), t.n_generated, plural(t.n_generated),
        t.n_generated / fmax(t.generate_s, 1e-9));
    free(t.logits);
    dw_sampler_free(t.sampler);
    dw_session_free(t.session);
    dw_tokenizer_free(t.tok);
    dw_model_close(t.model);
    dw_pool_free(pool);
    return 0;
}
