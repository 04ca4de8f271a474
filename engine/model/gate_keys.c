/* gate_keys.c - what a gated model's keys say (formats/ffn_gated.h), checked and given to the layers. */
#include "formats/ffn_gated.h"
#include "model/model.h"

#include <math.h>

static int missing(const char *key, dw_err *err) {
    return dw_fail(err, "key '%s' is missing, which layers with ffn_down_t need; make the file again", key);
}

/* Finds an array of one element per layer; *kv stays NULL when it is absent. */
static int find_per_layer(const dw_model *m, const char *key, dw_kv_type type, const char *type_name, const dw_kv **kv,
                          dw_err *err) {
    const dw_kv *found = dw_gguf_find(m->gguf, key);
    if (found && (found->type != type || !found->is_array || found->count != (size_t)m->net.hp.n_layer))
        return dw_fail(err, "key '%s' is not an array of %s for %d layers", key, type_name, m->net.hp.n_layer);
    *kv = found;
    return 0;
}

/* The same for numbers from 0 to `most`. */
static int find_numbers(const dw_model *m, const char *key, double most, bool required, const dw_kv **kv, dw_err *err) {
    if (find_per_layer(m, key, DW_KV_F32, "f32", kv, err)) return -1;
    if (!*kv) return required ? missing(key, err) : 0;
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const double value = dw_kv_number(*kv, (size_t)l);
        if (!isfinite(value) || value < 0 || value > most)
            return dw_fail(err, "key '%s' is %g for layer %d, expected a number of 0 %s", key, value, l,
                           most > 1 ? "or more" : "to 1");
    }
    return 0;
}

int dw_model_gate_group(const dw_model *m, int *group, dw_err *err) {
    uint32_t u;
    const int found = dw_gguf_u32(m->gguf, DW_KEY_GATE_GROUP, &u, err);
    if (found < 0) return -1;
    if (!found) return missing(DW_KEY_GATE_GROUP, err);
    if (u < 1 || u > (uint32_t)m->net.hp.n_ff_max)
        return dw_fail(err, "key '%s' is %u, expected 1 to %d neurons", DW_KEY_GATE_GROUP, u, m->net.hp.n_ff_max);
    *group = (int)u;
    return 0;
}

static int read_predictor_input(const dw_model *m, bool *previous, dw_err *err) {
    dw_str input = {"ffn", 3};
    if (dw_gguf_str(m->gguf, DW_KEY_PREDICTOR_INPUT, &input, err) < 0) return -1;
    *previous = dw_str_is(input, "previous");
    if (*previous || dw_str_is(input, "ffn")) return 0;
    return dw_fail(err, "key '%s' is '%.*s', but must be ffn or previous", DW_KEY_PREDICTOR_INPUT,
                   (int)(input.len < 40 ? input.len : 40), input.ptr);
}

int dw_model_read_gate(dw_model *m, dw_err *err) {
    bool by_threshold = false, previous;
    const dw_kv *threshold = NULL, *activity = NULL, *dense = NULL;
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        const dw_layer_gate *g = &m->net.layer[l].sparse;
        by_threshold |= g->down_t.name && !g->pred_a.name;
    }
    if (!dw_model_is_gated(m)) return 0;
    if (find_numbers(m, DW_KEY_GATE_THRESHOLD, INFINITY, by_threshold, &threshold, err) ||
        find_numbers(m, DW_KEY_GATE_ACTIVITY, 1, true, &activity, err) ||
        find_per_layer(m, DW_KEY_GATE_DENSE, DW_KV_BOOL, "bool", &dense, err) ||
        read_predictor_input(m, &previous, err))
        return -1;
    for (int l = 0; l < m->net.hp.n_layer; l++) {
        dw_layer_gate *g = &m->net.layer[l].sparse;
        g->threshold = threshold ? (float)dw_kv_number(threshold, (size_t)l) : 0;
        g->activity = (float)dw_kv_number(activity, (size_t)l);
        g->dense = dense && dw_kv_number(dense, (size_t)l) != 0;
        g->pred_previous = previous && l > 0; // the first layer's predictor reads its own input
    }
    return 0;
}

bool dw_model_is_gated(const dw_model *m) {
    for (int l = 0; l < m->net.hp.n_layer; l++)
        if (m->net.layer[l].sparse.down_t.name) return true;
    return false;
}
