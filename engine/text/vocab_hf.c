/* vocab_hf.c - a vocabulary from a Hugging Face folder.
 *
 *   tokenizer.json          tokens, merges, added tokens, and how text is prepared
 *   tokenizer.model         SentencePiece's own file; if it exists, a llama vocabulary takes tokens and scores from it
 *   added_tokens.json       added tokens, in folders without tokenizer.json
 *   tokenizer_config.json   names of special tokens, add_bos_token, chat_template
 *   config.json, generation_config.json   ids of special tokens
 *   chat_template.jinja     the template, in folders of newer writers
 * One of the first two must exist; the other files are optional.  What llama.cpp cannot do in the same way is refused,
 * with four exceptions, which are ignored as llama.cpp and its converter do:
 *   - the NFC normalizer of qwen2;
 *   - what an added token says of the text around it (lstrip, rstrip, single_word), for which GGUF has no key;
 *   - that a U+2581 comes before the first piece of a text only (prepend_scheme "first"): it comes before each piece
 *     between special tokens;
 *   - the unknown token of a gpt2 vocabulary that lacks bytes: these are left out. */
#include "text/internal.h"
#include "text/json.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_JSON = 256 << 20, MAX_TEMPLATE = 4 << 20 };

static const float ADDED_SCORE = -1000; // of added tokens, which no merge makes; the value of llama.cpp's converter

static dw_str str_of(const json_t *string) {
    return json_is_string(string) ? (dw_str){json_string_value(string), json_string_length(string)} : (dw_str){0};
}

static dw_str str_at(const json_t *object, const char *key) { return str_of(json_object_get(object, key)); }

static bool is_text(const json_t *string, const char *text) {
    return json_is_string(string) && dw_str_is(str_of(string), text);
}

static bool type_is(const json_t *object, const char *type) { return is_text(json_object_get(object, "type"), type); }

static bool is_true(const json_t *object, const char *key) { return json_is_true(json_object_get(object, key)); }

/* The steps of a normalizer, pre-tokenizer or post-processor: a Sequence lists them, any other object is one step. */
typedef struct steps {
    size_t n;
    const json_t *list, *only;
} steps;

static steps steps_of(const json_t *object, const char *list_key) {
    if (!json_is_object(object)) return (steps){0};
    if (!type_is(object, "Sequence")) return (steps){.n = 1, .only = object};
    const json_t *list = json_object_get(object, list_key);
    return (steps){.n = json_array_size(list), .list = list};
}

static const json_t *step(const steps *s, size_t i) { return s->only ? s->only : json_array_get(s->list, i); }

static int refuse(const char *what, const json_t *object, dw_err *err) {
    char *text = json_dumps(object, JSON_COMPACT | JSON_ENCODE_ANY);
    dw_fail(err, "%s %.200s is not supported: llama.cpp is not known to have the same", what, text ? text : "?");
    free(text);
    return -1;
}

/* ---- how text is prepared -------------------------------------------------------------------------- */

typedef struct layout {
    bool llama;            // else gpt2
    bool add_space_prefix; // llama
    const dw_pretokenizer_row *pre;
} layout;

static bool is_space_text(const json_t *string) { return is_text(string, DW_SPACE); }

/* llama: a normalizer, a Metaspace or both replace every space by U+2581, and may add one before the text. */
static int read_llama_layout(const json_t *normalizer, const json_t *pre, layout *l, dw_err *err) {
    const steps n = steps_of(normalizer, "normalizers"), p = steps_of(pre, "pretokenizers");
    bool replaced = false;
    for (size_t i = 0; i < n.n; i++) {
        const json_t *s = step(&n, i);
        const bool prepend = type_is(s, "Prepend") && is_space_text(json_object_get(s, "prepend"));
        const bool replace = type_is(s, "Replace") && is_space_text(json_object_get(s, "content")) &&
                             is_text(json_object_get(json_object_get(s, "pattern"), "String"), " ");
        if (!prepend && !replace) return refuse("normalizer", s, err);
        l->add_space_prefix |= prepend;
        replaced |= replace;
    }
    for (size_t i = 0; i < p.n; i++) {
        const json_t *s = step(&p, i), *scheme = json_object_get(s, "prepend_scheme");
        // no effect: the normalizer has replaced all spaces
        if (replaced && type_is(s, "Split") && is_text(json_object_get(json_object_get(s, "pattern"), "String"), " "))
            continue;
        if (!type_is(s, "Metaspace") || !is_space_text(json_object_get(s, "replacement")))
            return refuse("pre-tokenizer", s, err);
        l->add_space_prefix |= scheme ? !is_text(scheme, "never")
                                      : !json_is_false(json_object_get(s, "add_prefix_space"));
        replaced = true;
    }
    return replaced ? 0 : dw_fail(err, "tokenizer.json has no step that replaces spaces by U+2581, which is required");
}

static int read_gpt2_layout(const json_t *normalizer, const json_t *pre, bool ignore_merges, layout *l, dw_err *err) {
    const steps n = steps_of(normalizer, "normalizers"), p = steps_of(pre, "pretokenizers");
    for (size_t i = 0; i < n.n; i++)
        if (!type_is(step(&n, i), "NFC")) return refuse("normalizer", step(&n, i), err);
    const json_t *bytes = p.n ? step(&p, p.n - 1) : NULL, *first = p.n ? step(&p, 0) : NULL;
    if (p.n < 1 || p.n > 2 || !type_is(bytes, "ByteLevel") || is_true(bytes, "add_prefix_space"))
        return refuse("pre-tokenizer", pre, err);
    const bool use_regex = !json_is_false(json_object_get(bytes, "use_regex"));
    if (p.n == 1 && use_regex) {
        l->pre = dw_pretokenizer_find((dw_str){"gpt-2", 5});
    } else if (p.n == 2 && use_regex && type_is(first, "Digits") && is_true(first, "individual_digits")) {
        l->pre = dw_pretokenizer_find((dw_str){"smollm", 6});
    } else if (p.n == 2 && !use_regex && type_is(first, "Split") &&
               is_text(json_object_get(first, "behavior"), "Isolated") && !is_true(first, "invert")) {
        const dw_str split = str_at(json_object_get(first, "pattern"), "Regex");
        if (split.ptr) l->pre = dw_pretokenizer_find_split(split.ptr, ignore_merges);
        if (split.ptr && !l->pre && dw_pretokenizer_find_split(split.ptr, !ignore_merges))
            return dw_fail(err, "no pre-tokenizer of llama.cpp has this expression and ignore_merges %s: '%.200s'",
                           ignore_merges ? "true" : "false", split.ptr);
    }
    if (!l->pre) return refuse("pre-tokenizer", pre, err);
    if (l->pre->ignore_merges != ignore_merges)
        return dw_fail(err, "no pre-tokenizer of llama.cpp like '%s' has ignore_merges", l->pre->names);
    return 0;
}

static int read_layout(const json_t *tokenizer, layout *l, dw_err *err) {
    const json_t *model = json_object_get(tokenizer, "model"), *type = json_object_get(model, "type");
    const json_t *normalizer = json_object_get(tokenizer, "normalizer"),
                 *pre = json_object_get(tokenizer, "pre_tokenizer");
    *l = (layout){0};
    if (!json_is_object(model)) return dw_fail(err, "tokenizer.json has no object 'model'");
    if (type && !is_text(type, "BPE")) return refuse("model type", type, err);
    for (int i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(model, i ? "end_of_word_suffix" : "continuing_subword_prefix");
        if (json_string_length(affix)) return refuse("a prefix or suffix of subwords,", affix, err);
    }
    const bool ignore_merges = is_true(model, "ignore_merges");
    l->llama = is_true(model, "byte_fallback");
    if (!l->llama) return read_gpt2_layout(normalizer, pre, ignore_merges, l, err);
    if (ignore_merges)
        return dw_fail(err, "ignore_merges with byte_fallback is not supported: llama.cpp always merges");
    return read_llama_layout(normalizer, pre, l, err);
}

/* ---- tokens ------------------------------------------------------------------------------------------ */

/* An empty text counts as none: dw_vocab_pad names its id later. */
static int set_token(dw_vocab *v, json_int_t id, dw_str text, int32_t type, dw_err *err) {
    if (id < 0 || (uint64_t)id >= v->n_token)
        return dw_fail(err, "token '%.*s' has id %lld, but the model has %zu rows", DW_SHOW(text), (long long)id,
                       v->n_token);
    v->token[id] = dw_vocab_text(v, text.ptr, text.len, err);
    v->type[id] = type;
    return v->token[id].ptr ? 0 : -1;
}

static int read_tokens(dw_vocab *v, const json_t *model, dw_err *err) {
    json_t *vocab = json_object_get(model, "vocab");
    if (!json_object_size(vocab)) return dw_fail(err, "tokenizer.json has no object 'model.vocab'");
    for (void *i = json_object_iter(vocab); i; i = json_object_iter_next(vocab, i)) {
        const json_t *id = json_object_iter_value(i);
        const dw_str text = {json_object_iter_key(i), json_object_iter_key_len(i)};
        if (!json_is_integer(id)) return dw_fail(err, "the id of token '%.*s' is not an integer", DW_SHOW(text));
        const json_int_t n = json_integer_value(id);
        if (n >= 0 && (uint64_t)n < v->n_token && v->token[n].len)
            return dw_fail(err, "tokens '%.*s' and '%.*s' have the same id %lld", DW_SHOW(v->token[n]), DW_SHOW(text),
                           (long long)n);
        const bool byte = v->score && dw_spm_byte(text) >= 0;
        if (set_token(v, n, text, byte ? DW_TOKEN_BYTE : DW_TOKEN_NORMAL, err)) return -1;
    }
    return 0;
}

static bool framed(dw_str text, const char *start, const char *end) {
    const size_t n_start = strlen(start), n_end = strlen(end);
    return text.len >= n_start + n_end && !memcmp(text.ptr, start, n_start) &&
           !memcmp(text.ptr + text.len - n_end, end, n_end);
}

/* Texts that are control tokens whatever the file says; llama.cpp's converter has the same list. */
static bool looks_control(dw_str text) {
    return dw_str_is(text, "<pad>") || dw_str_is(text, "<mask>") || framed(text, "<|", "|>") ||
           framed(text, "<\xef\xbd\x9c", "\xef\xbd\x9c>") || framed(text, "<unused", ">"); // U+FF5C is DeepSeek's bar
}

/* A copy with a space for every U+2581. */
static dw_str with_spaces(dw_vocab *v, dw_str text, dw_err *err) {
    dw_str copy = dw_vocab_text(v, text.ptr, text.len, err);
    char *to = (char *)copy.ptr;
    size_t n = 0;
    for (size_t i = 0; copy.ptr && i < text.len; n++) {
        const bool space = framed((dw_str){text.ptr + i, text.len - i}, DW_SPACE, "");
        to[n] = space ? ' ' : text.ptr[i];
        i += space ? strlen(DW_SPACE) : 1;
    }
    return (dw_str){copy.ptr, n};
}

/* Takes over one added token; `replace`: it may replace another text of the same id. */
static int add_token(dw_vocab *v, dw_str content, bool special, json_int_t id, bool replace, dw_err *err) {
    if (!content.len) return dw_fail(err, "the added token %lld has no content", (long long)id);
    const bool control = special || looks_control(content);
    const dw_str old = id >= 0 && (uint64_t)id < v->n_token ? v->token[id] : (dw_str){0};
    const bool same = old.len == content.len && !memcmp(old.ptr, content.ptr, old.len);
    if (same && (v->type[id] == DW_TOKEN_UNKNOWN || v->type[id] == DW_TOKEN_BYTE)) return 0;
    if (old.len && !same && !replace)
        return dw_fail(err, "tokens '%.*s' and '%.*s' have the same id %lld", DW_SHOW(old), DW_SHOW(content),
                       (long long)id);
    const dw_str text = control ? content : with_spaces(v, content, err);
    if (!text.ptr || set_token(v, id, text, control ? DW_TOKEN_CONTROL : DW_TOKEN_USER, err)) return -1;
    if (v->score && !same) v->score[id] = ADDED_SCORE;
    return 0;
}

static int read_added_token(dw_vocab *v, const json_t *added, json_int_t id, bool replace, dw_err *err) {
    return add_token(v, str_at(added, "content"), is_true(added, "special"), id, replace, err);
}

/* added_tokens.json has ids by text, and nothing else.  Tokens without a row in the embedding, such as a padding token
 * that was added for training, are left out, as llama.cpp's converter does. */
static int read_added_ids(dw_vocab *v, const json_t *added, dw_err *err) {
    const char *text;
    json_t *entry;
    if (added && !json_is_object(added)) return dw_fail(err, "added_tokens.json is not an object of ids by text");
    json_object_foreach((json_t *)(uintptr_t)added, text, entry) {
        const json_int_t id = json_is_integer(entry) ? json_integer_value(entry) : -1;
        if (id < 0) return dw_fail(err, "added_tokens.json: the id of '%.40s' is no whole number", text);
        if ((uint64_t)id >= v->n_token || dw_str_is(v->token[id], text)) continue;
        if (add_token(v, (dw_str){text, strlen(text)}, false, id, true, err)) return -1;
    }
    return 0;
}

/* Added tokens are in tokenizer.json.  In a folder without that file they are in added_tokens.json, and by id in the
 * tokenizer_config.json of newer writers. */
static int read_added(dw_vocab *v, const dw_hf_files *f, bool replace, dw_err *err) {
    const json_t *list = json_object_get(f->tokenizer, "added_tokens");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *added = json_array_get(list, i), *id = json_object_get(added, "id");
        if (!json_is_integer(id)) return dw_fail(err, "entry %zu of added_tokens has no id", i);
        if (read_added_token(v, added, json_integer_value(id), replace, err)) return -1;
    }
    if (!f->tokenizer && read_added_ids(v, f->added_tokens, err)) return -1;
    json_t *decoder = f->tokenizer ? NULL : json_object_get(f->tokenizer_config, "added_tokens_decoder");
    for (void *i = json_object_iter(decoder); i; i = json_object_iter_next(decoder, i)) {
        char *end;
        const long long id = strtoll(json_object_iter_key(i), &end, 10);
        if (*end) return dw_fail(err, "added_tokens_decoder: '%.40s' is not an id", json_object_iter_key(i));
        if (read_added_token(v, json_object_iter_value(i), id, replace, err)) return -1;
    }
    return 0;
}

/* ---- merges ------------------------------------------------------------------------------------------ */

/* Joins two texts to "left right".  A space inside a text becomes U+0120, the byte-level character of a space. */
static dw_str join_pair(dw_vocab *v, dw_str left, dw_str right, dw_err *err) {
    const dw_str part[2] = {left, right};
    size_t n = 0;
    char *joined = dw_alloc(2 * (left.len + right.len) + 1, 1, "a merge", err);
    if (!joined) return (dw_str){0};
    for (int p = 0; p < 2; p++) {
        if (p) joined[n++] = ' ';
        for (size_t i = 0; i < part[p].len; i++) {
            if (part[p].ptr[i] == ' ')
                joined[n++] = '\xc4', joined[n++] = '\xa0';
            else
                joined[n++] = part[p].ptr[i];
        }
    }
    const dw_str merge = dw_vocab_text(v, joined, n, err);
    free(joined);
    return merge;
}

static int read_merges(dw_vocab *v, const json_t *model, dw_err *err) {
    const json_t *merges = json_object_get(model, "merges");
    const size_t n = json_array_size(merges);
    if (!n || n > INT32_MAX) return dw_fail(err, "tokenizer.json has no array 'model.merges'");
    if (!(v->merge = dw_alloc(n, sizeof *v->merge, "merges", err))) return -1;
    v->n_merge = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i), *left = json_array_get(m, 0), *right = json_array_get(m, 1);
        if (json_is_string(m))
            v->merge[i] = dw_vocab_text(v, str_of(m).ptr, str_of(m).len, err);
        else if (json_array_size(m) == 2 && json_is_string(left) && json_is_string(right))
            v->merge[i] = join_pair(v, str_of(left), str_of(right), err);
        else
            return dw_fail(err, "merge %zu is neither a string nor a pair of strings", i);
        if (!v->merge[i].ptr) return -1;
    }
    return 0;
}

static uint64_t pair_of(int32_t left, int32_t right) { return (uint64_t)left << 32 | (uint32_t)right; }

static int ascending(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Checks that every merge names tokens; their pairs of ids, ascending, free().  For llama the ranks become scores, below
 * them those of tokens that no merge makes. */
static uint64_t *use_merges(dw_vocab *v, dw_err *err) {
    dw_lookup x;
    if (dw_lookup_build(&x, v->token, v->n_token, err)) return NULL;
    uint64_t *pair = dw_alloc(v->n_merge, sizeof *pair, "merges", err);
    int rc = pair ? 0 : -1;
    for (size_t i = 0; i < v->n_token && v->score; i++) v->score[i] = -(float)v->n_merge;
    for (size_t i = v->n_merge; i-- && !rc;) { // backwards, so that the first of several merges with one result counts
        dw_merge_ids ids;
        rc = dw_vocab_merge_ids(v, &x, i, &ids, err);
        if (rc) break;
        pair[i] = pair_of(ids.left, ids.right);
        if (v->score) v->score[ids.result] = -(float)i;
    }
    dw_lookup_release(&x);
    if (!rc) {
        qsort(pair, v->n_merge, sizeof *pair, ascending);
        return pair;
    }
    free(pair);
    return NULL;
}

static bool is_merged(const dw_vocab *v, int32_t id) { return id >= 0 && v->type[id] == DW_TOKEN_NORMAL; }

/* Every two tokens that together are token `id` must be among the pairs. */
static int check_splits(const dw_vocab *v, const dw_lookup *x, size_t id, const uint64_t *pair, dw_err *err) {
    const dw_str text = v->token[id];
    for (size_t at = dw_utf8_char(text.ptr, text.len); at < text.len;
         at += dw_utf8_char(text.ptr + at, text.len - at)) {
        const int32_t left = dw_lookup_find(x, text.ptr, at), right = dw_lookup_find(x, text.ptr + at, text.len - at);
        if (!is_merged(v, left) || !is_merged(v, right)) continue;
        const uint64_t wanted = pair_of(left, right);
        if (!bsearch(&wanted, pair, v->n_merge, sizeof *pair, ascending))
            return dw_fail(err,
                           "tokens '%.*s' and '%.*s' make '%.*s', but tokenizer.json has no merge of them; llama.cpp "
                           "would merge them, so this is not supported without the tokenizer.model",
                           DW_SHOW(v->token[left]), DW_SHOW(v->token[right]), DW_SHOW(text));
    }
    return 0;
}

/* llama: scores belong to results, so a result is made of any two tokens.  Merges say so, too, if SentencePiece's
 * vocabulary was converted to them; those of a tokenizer that was trained as BPE do not.  Frees the merges. */
static int end_merges(dw_vocab *v, const uint64_t *pair, dw_err *err) {
    dw_lookup x;
    if (!v->score) return 0;
    if (dw_lookup_build(&x, v->token, v->n_token, err)) return -1;
    int rc = 0;
    for (size_t id = 0; id < v->n_token && !rc; id++)
        if (is_merged(v, (int32_t)id)) rc = check_splits(v, &x, id, pair, err);
    dw_lookup_release(&x);
    free(v->merge);
    v->merge = NULL;
    v->n_merge = 0;
    return rc;
}

/* ---- special tokens ------------------------------------------------------------------------------------ */

/* The id of a token that tokenizer_config.json names by a text or by an object with "content"; -1: none. */
static int32_t find_named(const dw_lookup *x, const json_t *config, const char *key) {
    const json_t *entry = json_object_get(config, key);
    const dw_str text = json_is_object(entry) ? str_at(entry, "content") : str_of(entry);
    return text.len ? dw_lookup_find(x, text.ptr, text.len) : -1;
}

/* An id, or the first id of an array; -1: none. */
static int32_t find_id(const json_t *config, const char *key, size_t n_token) {
    const json_t *entry = json_object_get(config, key);
    if (json_is_array(entry)) entry = json_array_get(entry, 0);
    const json_int_t id = json_is_integer(entry) ? json_integer_value(entry) : -1;
    return id >= 0 && (uint64_t)id < n_token ? (int32_t)id : -1;
}

static void find_special(const dw_hf_files *f, const dw_lookup *x, size_t n_token, const char *name, int32_t *id) {
    char key_token[32], key_id[32];
    snprintf(key_token, sizeof key_token, "%s_token", name);
    snprintf(key_id, sizeof key_id, "%s_token_id", name);
    int32_t found = find_named(x, f->tokenizer_config, key_token);
    if (found < 0) found = find_id(f->config, key_id, n_token);
    if (found < 0) found = find_id(f->generation_config, key_id, n_token);
    if (found >= 0) *id = found;
}

/* The id of the special token that the post-processor puts first (`last`: last); -1: none. */
static int32_t template_token(const json_t *tokenizer, const dw_lookup *x, bool last) {
    const steps p = steps_of(json_object_get(tokenizer, "post_processor"), "processors");
    for (size_t i = 0; i < p.n; i++) {
        const json_t *s = step(&p, i), *single = json_object_get(s, "single");
        const size_t n = json_array_size(single);
        if (!type_is(s, "TemplateProcessing") || !n) continue;
        const dw_str text = str_at(json_object_get(json_array_get(single, last ? n - 1 : 0), "SpecialToken"), "id");
        return text.len ? dw_lookup_find(x, text.ptr, text.len) : -1;
    }
    return -1;
}

static bool find_add(const dw_hf_files *f, const char *key, bool otherwise) {
    const json_t *entry = json_object_get(f->tokenizer_config, key);
    return json_is_boolean(entry) ? json_is_true(entry) : otherwise;
}

static int read_special(dw_vocab *v, const dw_hf_files *f, dw_err *err) {
    dw_lookup x;
    if (dw_lookup_build(&x, v->token, v->n_token, err)) return -1;
    find_special(f, &x, v->n_token, "bos", &v->bos);
    find_special(f, &x, v->n_token, "eos", &v->eos);
    find_special(f, &x, v->n_token, "pad", &v->pad);
    const int32_t model_unk = find_named(&x, json_object_get(f->tokenizer, "model"), "unk_token");
    if (model_unk >= 0) v->unk = model_unk;
    const int32_t unk = find_named(&x, f->tokenizer_config, "unk_token");
    if (unk >= 0) v->unk = unk;
    if (v->score && v->unk >= 0) v->type[v->unk] = DW_TOKEN_UNKNOWN;
    v->eot = dw_vocab_find_eot(&x);

    const int32_t first = template_token(f->tokenizer, &x, false), last = template_token(f->tokenizer, &x, true);
    if (v->bos < 0) v->bos = first;
    const bool processed = json_is_object(json_object_get(f->tokenizer, "post_processor"));
    v->add_bos = find_add(f, "add_bos_token", first >= 0 ? first == v->bos : v->score && !processed) && v->bos >= 0;
    v->add_eos = find_add(f, "add_eos_token", last >= 0 && last == v->eos) && v->eos >= 0;
    if (v->score) v->add_space_prefix = find_add(f, "add_prefix_space", v->add_space_prefix);
    dw_lookup_release(&x);
    return 0;
}

/* tokenizer_config.json has the template itself, or a list of named templates; "default" is taken then. */
static int read_template(dw_vocab *v, const dw_hf_files *f, dw_err *err) {
    const json_t *entry = json_object_get(f->tokenizer_config, "chat_template");
    dw_str text = str_of(entry);
    for (size_t i = 0; i < json_array_size(entry); i++)
        if (is_text(json_object_get(json_array_get(entry, i), "name"), "default"))
            text = str_at(json_array_get(entry, i), "template");
    if (!text.len) text = f->chat_template;
    if (!text.len) return 0;
    v->chat_template = dw_vocab_text(v, text.ptr, text.len, err);
    return v->chat_template.ptr ? 0 : -1;
}

/* ---- whole folder ---------------------------------------------------------------------------------------- */

static int import(dw_vocab *v, const dw_hf_files *f, size_t n_rows, dw_err *err) {
    layout l = {.llama = true};
    uint64_t *pair = NULL; // of merges
    const json_t *model = json_object_get(f->tokenizer, "model");
    if (f->tokenizer && read_layout(f->tokenizer, &l, err)) return -1;
    const bool spm = l.llama && f->model.ptr;
    if (spm) {
        if (dw_vocab_from_spm(v, f->model, n_rows, err)) return -1;
    } else if (!f->tokenizer) {
        return dw_fail(err, "there is neither a tokenizer.json nor a tokenizer.model");
    } else {
        if (dw_vocab_alloc(v, l.llama ? "llama" : "gpt2", n_rows, err) || read_tokens(v, model, err)) return -1;
        if (read_merges(v, model, err) || !(pair = use_merges(v, err))) return -1;
        v->add_space_prefix = l.add_space_prefix;
    }
    if (l.pre) {
        memcpy(v->pre, l.pre->names, strcspn(l.pre->names, " "));
        v->ignore_merges = l.pre->ignore_merges;
    }
    int rc = read_added(v, f, spm, err);
    if (!rc && pair) rc = end_merges(v, pair, err); // added tokens are of another type now
    free(pair);
    if (rc) return -1;
    if (dw_vocab_pad(v, err) || read_special(v, f, err) || read_template(v, f, err)) return -1;
    return 0;
}

int dw_vocab_from_hf_files(dw_vocab *v, const dw_hf_files *files, size_t n_rows, dw_err *err) {
    *v = (dw_vocab){0};
    if (!import(v, files, n_rows, err)) return 0;
    dw_vocab_release(v);
    return -1;
}

/* *json stays NULL when there is no such file. */
static int load(const char *folder, const char *name, json_t **json, dw_err *err) {
    char *path = dw_format(err, "%s/%s", folder, name);
    if (!path) return -1;
    const bool there = !access(path, F_OK);
    if (there) *json = dw_json_load(path, MAX_JSON, DW_JSON_LARGE_TREE, err);
    free(path);
    return there && !*json ? -1 : 0;
}

static int load_text(const char *folder, const char *name, size_t max_bytes, char **text, size_t *len, dw_err *err) {
    char *path = dw_format(err, "%s/%s", folder, name);
    if (!path) return -1;
    const bool there = !access(path, F_OK);
    if (there) *text = dw_read_file(path, max_bytes, len, err);
    free(path);
    return there && !*text ? -1 : 0;
}

int dw_vocab_from_hf(dw_vocab *v, const char *folder, size_t n_rows, dw_err *err) {
    json_t *tokenizer = NULL, *added_tokens = NULL, *tokenizer_config = NULL, *config = NULL, *generation_config = NULL;
    char *model = NULL, *chat_template = NULL;
    size_t model_len = 0, template_len = 0;
    *v = (dw_vocab){0};
    int rc = load(folder, "tokenizer.json", &tokenizer, err) ||
             (!tokenizer && load(folder, "added_tokens.json", &added_tokens, err)) ||
             load(folder, "tokenizer_config.json", &tokenizer_config, err) ||
             load(folder, "config.json", &config, err) ||
             load(folder, "generation_config.json", &generation_config, err) ||
             load_text(folder, "tokenizer.model", MAX_JSON, &model, &model_len, err) ||
             load_text(folder, "chat_template.jinja", MAX_TEMPLATE, &chat_template, &template_len, err);
    const dw_hf_files files = {.tokenizer = tokenizer,
                               .added_tokens = added_tokens,
                               .tokenizer_config = tokenizer_config,
                               .config = config,
                               .generation_config = generation_config,
                               .model = {model, model_len},
                               .chat_template = {chat_template, template_len}};
    if (!rc && dw_vocab_from_hf_files(v, &files, n_rows, err)) rc = dw_fail_in(err, "'%s'", folder);
    json_decref(tokenizer);
    json_decref(added_tokens);
    json_decref(tokenizer_config);
    json_decref(config);
    json_decref(generation_config);
    free(model);
    free(chat_template);
    return rc ? -1 : 0;
}
