/* pretokenize.c - where byte-level BPE cuts text before merging.
 *
 * Each row is a pre-tokenizer: its names in GGUF files, the expressions that cut as llama.cpp does, and the expression
 * that a tokenizer.json has for it.  A match is a piece, and so is the text between two matches.
 *
 * The expressions avoid character classes whose meaning depends on the library.  White space is Unicode's White_Space
 * written out, because PCRE2's \s also has U+180E.  The contractions list both ASCII cases, because caseless matching
 * would take U+017F for an s. */
#include "text/internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
#define WS          "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPACES      "[" WS "]+(?![^" WS "])|[" WS "]+"       // a run of spaces; before text, all but its last
#define LINES       "[" WS "]*[\\r\\n]+"                     // a run of spaces up to its last line break
#define CONTRACTION "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"

#define GPT2        "'(?:[stmd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" SPACES
#define LLAMA3(numbers, letters, other) \
    CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?" letters "+|" numbers "| ?" other "+[\\r\\n]*|" LINES "|" SPACES
#define NEITHER     "[^" WS "\\p{L}\\p{N}]"
#define TEKKEN_OPEN "[^\\r\\n\\p{L}\\p{N}]?"

#define HF_TAIL     "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define HF_HEAD     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?"

static const dw_pretokenizer_row pretokenizers[] = {
    {"gpt-2 phi-2 jina-es jina-de mpt olmo jais exaone4 trillion", {GPT2}, NULL, false, false},
    {"llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
     {LLAMA3("\\p{N}{1,3}", "\\p{L}", NEITHER)},
     HF_HEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" HF_TAIL, true, true},
    {"smaug-bpe dbrx", {LLAMA3("\\p{N}{1,3}", "\\p{L}", NEITHER)},
     HF_HEAD "\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+" HF_TAIL, false, false},
    {"qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan solar-open grok-2", {LLAMA3("\\p{N}", "\\p{L}", NEITHER)},
     HF_HEAD "\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+" HF_TAIL, false, false},
    {"qwen35", {LLAMA3("\\p{N}", "[\\p{L}\\p{M}]", "[^" WS "\\p{L}\\p{M}\\p{N}]")},
     HF_HEAD "[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+" HF_TAIL, false, false},
    {"smollm starcoder refact command-r codeshell exaone minerva-7b", {"\\p{N}", GPT2}, NULL, false, false},
    // upper and lower case differ for ASCII only: [^\P{L}a-z] is a letter that is not a-z
    {"tekken", {TEKKEN_OPEN "[^\\P{L}a-z]*[^\\P{L}A-Z]+|" TEKKEN_OPEN "[^\\P{L}a-z]+[^\\P{L}A-Z]*|\\p{N}| ?"
                NEITHER "+[\\r\\n/]*|" LINES "|" SPACES},
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
     "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", true, true},
    {"falcon", {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}, NULL, false, false},
    {"default", {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}, NULL, false, false},
};
// clang-format on

enum { N_ROWS = sizeof pretokenizers / sizeof *pretokenizers, N_EXPR = 4 };

const dw_pretokenizer_row *dw_pretokenizer_find(dw_str name) {
    for (size_t i = 0; i < N_ROWS; i++)
        for (const char *at = pretokenizers[i].names, *end; *at; at = *end ? end + 1 : end) {
            end = strchrnul(at, ' ');
            if ((size_t)(end - at) == name.len && !memcmp(at, name.ptr, name.len)) return &pretokenizers[i];
        }
    return NULL;
}

const dw_pretokenizer_row *dw_pretokenizer_find_split(const char *hf_split, bool ignore_merges) {
    for (size_t i = 0; i < N_ROWS; i++)
        if (pretokenizers[i].hf_split && !strcmp(pretokenizers[i].hf_split, hf_split) &&
            pretokenizers[i].ignore_merges == ignore_merges)
            return &pretokenizers[i];
    return NULL;
}

struct dw_pretokenizer {
    size_t n_expr;
    pcre2_code *code[N_EXPR];
    pcre2_match_context *context;
};

dw_pretokenizer *dw_pretokenizer_new(const dw_pretokenizer_row *row, dw_err *err) {
    dw_pretokenizer *p = dw_alloc(1, sizeof *p, "a pre-tokenizer", err);
    if (!p) return NULL;
    for (; p->n_expr < N_EXPR && row->expr[p->n_expr]; p->n_expr++) {
        int code;
        PCRE2_SIZE at;
        pcre2_code **c = &p->code[p->n_expr];
        *c = pcre2_compile((PCRE2_SPTR)row->expr[p->n_expr], PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code, &at, NULL);
        if (!*c) {
            dw_fail(err, "pre-tokenizer '%s': expression %zu, column %zu: PCRE2 error %d", row->names, p->n_expr, at,
                    code);
            dw_pretokenizer_free(p);
            return NULL;
        }
        pcre2_jit_compile(*c, PCRE2_JIT_COMPLETE); // without a JIT compiler pcre2_match interprets
    }
    if ((p->context = pcre2_match_context_create(NULL))) {
        pcre2_set_match_limit(p->context, UINT32_MAX); // a run of white space may be as long as the text
        return p;
    }
    dw_fail(err, "out of memory: a pre-tokenizer");
    dw_pretokenizer_free(p);
    return NULL;
}

void dw_pretokenizer_free(dw_pretokenizer *p) {
    if (!p) return;
    for (size_t i = 0; i < p->n_expr; i++) pcre2_code_free(p->code[i]);
    pcre2_match_context_free(p->context);
    free(p);
}

typedef struct cutting {
    const dw_pretokenizer *p;
    pcre2_match_data *match[N_EXPR];
    int (*piece)(void *arg, const char *text, size_t len, dw_err *err);
    void *arg;
} cutting;

static int cut(const cutting *c, size_t level, const char *text, size_t len, dw_err *err) {
    if (level == N_EXPR || level == c->p->n_expr) return c->piece(c->arg, text, len, err);
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(c->match[level]);
    for (size_t at = 0; at < len;) {
        const int found = pcre2_match(c->p->code[level], (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, c->match[level],
                                      c->p->context);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH) return dw_fail(err, "cutting text: PCRE2 error %d", found);
        const size_t start = found < 0 ? len : span[0], end = found < 0 ? len : span[1];
        if (start > at && cut(c, level + 1, text + at, start - at, err)) return -1;
        if (end > start && cut(c, level + 1, text + start, end - start, err)) return -1;
        at = end;
    }
    return 0;
}

int dw_pretokenize(const dw_pretokenizer *p, const char *text, size_t len,
                   int (*piece)(void *arg, const char *text, size_t len, dw_err *err), void *arg, dw_err *err) {
    cutting c = {.p = p, .piece = piece, .arg = arg};
    int rc = 0;
    for (size_t i = 0; i < p->n_expr; i++)
        if (!(c.match[i] = pcre2_match_data_create(1, NULL))) rc = dw_fail(err, "out of memory: matches");
    if (!rc) rc = cut(&c, 0, text, len, err);
    for (size_t i = 0; i < p->n_expr; i++) pcre2_match_data_free(c.match[i]);
    return rc;
}
