# A program of ten lines runs a model with libengine.a alone: no library besides libc and libm.
[ -z "${SAN:-}" ] || { echo "a sanitizer's objects are not linked here" >&2; exit 77; }
cat >ten.c <<'END'
#include "engine.h"
#include <stdio.h>
int main(int argc, char **argv) {
    dw_err err = {0};
    dw_pool *pool = dw_pool_new(1, &err);
    dw_model *m = argc > 1 ? dw_model_open(argv[1], &err) : NULL;
    dw_session *s = m && pool ? dw_session_new(m, &(dw_session_options){.pool = pool, .backend = "ref"}, &err) : NULL;
    const int32_t ids[] = {1, 2, 3}, next = 4;
    double logprob;
    if (!s || dw_session_eval(s, &(dw_batch){.n_tokens = 3, .token = ids}, &err) || dw_session_logprobs(s, 0, 1, &next, &logprob, &err))
        return printf("%s\n", err.text), 1;
    printf("%.4f\n", logprob);
}
END
cc -std=gnu11 -Wall -Wextra -Werror -I"$ROOT/engine" ten.c "$BUILD/libengine.a" -lm -lpthread -o ten
deadwood convert "$ROOT/experiments/mini" -o mini.gguf -q
./ten mini.gguf | grep -qE '^-[0-9]+\.[0-9]{4}$'
if ./ten ten.c >refused; then exit 1; fi
grep -q "ten.c" refused
ldd ten | grep -vE 'linux-vdso|ld-linux|libc\.so|libm\.so' >others || true
cat others
test ! -s others
