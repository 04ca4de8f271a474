/* test_base.c - errors, memory, files, hashes, half precision, threads. */
#include "base/cpus.h"
#include "base/set.h"
#include "build.h"
#include "test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void first_failure_wins(void) {
    dw_err err = {0};
    CHECK(dw_fail(&err, "layer %d", 3) == -1);
    dw_fail(&err, "later");
    dw_fail_in(&err, "file 'x'");
    CHECK(!strcmp(err.text, "file 'x': layer 3"), "%s", err.text);
    CHECK(dw_fail(NULL, "nobody listens") == -1);
}

static void long_paths(void) {
    static char path[4096];
    memset(path, 'p', sizeof path - 1);
    dw_err err = {0};
    dw_fail(&err, "cannot open '%s': %s", path, "no such file");
    CHECK(strstr(err.text, "p': no such file"), "%s", err.text);
    CHECK(test_run("deadwood-inspect $(printf 'folder/%%.0s' $(seq 500))m.gguf") == 1);
    CHECK(strstr(test_run_output(), "m.gguf"), "%s", test_run_output());
    CHECK(strstr(test_run_output(), "No such file or directory"), "%s", test_run_output());
}

static void control_bytes(void) {
    dw_err err = {0};
    dw_fail(&err, "name '%s'", "a\033[2Jb");
    CHECK(!strchr(err.text, 033), "%s", err.text);
}

static void shown_text(void) {
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"aé日👍", "aé日👍"},
        {"a\033[2J\x7f\n\t\r", "a\\x1b[2J\\x7f\\n\\t\\x0d"},
        {"\xc2\x80\xc2\x9b\xc2\x9f\u00a0", "\\u0080\\u009b\\u009f\u00a0"},
        {"\u061c\u200d\u200e\u200f", "\\u061c\u200d\\u200e\\u200f"},
        {"\u2027\u2028\u202a\u202e\u202f", "\u2027\\u2028\\u202a\\u202e\u202f"},
        {"\u2065\u2066\u2069\u206a", "\u2065\\u2066\\u2069\u206a"},
        {"\x9b!\xff\xc0\x9b \xe2(", "\\x9b!\\xff\\xc0\\x9b \\xe2("},
        {"cut \xe6\x97", "cut \\xe6\\x97"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char shown[128];
        const size_t n = dw_show(shown, sizeof shown, cases[i].text, strlen(cases[i].text));
        CHECK(!strcmp(shown, cases[i].shown) && n == strlen(shown), "'%s' instead of '%s'", shown, cases[i].shown);
    }
    char few[6]; // whole characters and escapes
    CHECK(dw_show(few, sizeof few, "a\0b", 3) == 5 && !strcmp(few, "a\\x00"), "%s", few);
    CHECK(dw_show(few, sizeof few, "ab\033", 3) == 2 && dw_show(few, sizeof few, "日日", 6) == 3);
    CHECK(dw_show(few, 1, "ab", 2) == 0 && !*few);
}

/* A system call that reads beyond the memory fails, instead of this process. */
static void pages(void) {
    static const size_t sizes[] = {1, 64, 4096, 100000, (2 << 20) - 64, 5 << 20};
    int ends[2];
    if (!CHECK(!pipe(ends), "%s", strerror(errno))) return;
    for (int huge = 0; huge < 2; huge++)
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            dw_pages p;
            dw_err err = {0};
            const size_t n = sizes[i];
            if (!CHECK(!dw_pages_new(&p, n, huge, &err), "%s", err.text)) continue;
            CHECK(p.n_bytes == n && (n % 64 || (uintptr_t)p.data % 64 == 0));
            CHECK(!p.data[0] && !p.data[n / 2] && !p.data[n - 1], "%zu bytes are not zero", n);
            p.data[0] = p.data[n - 1] = 1;
            const double share = dw_pages_huge_share(&p); // NaN: unknown
            CHECK(!(share < 0) && !(share > 1), "%zu bytes: %g", n, share);
            CHECK(write(ends[1], p.data + n, 1) == -1 && errno == EFAULT, "%zu bytes, huge %d: one more is read", n, huge);
            dw_pages_free(&p);
            CHECK(!p.data);
        }
    dw_err err = {0};
    dw_pages p;
    CHECK(dw_pages_new(&p, SIZE_MAX - 100, true, &err) && strstr(err.text, "out of memory") && !p.data, "%s", err.text);
    dw_pages_free(&p);
    close(ends[0]), close(ends[1]);
}

/* Sums of places, too: a block that no size_t counts stays too large, whatever follows. */
static void huge_layout(void) {
    dw_layout l = {0};
    dw_layout_take(&l, 3, 5);
    CHECK(l.used == 64, "%zu", l.used);
    for (int i = 0; i < 5; i++) dw_layout_take(&l, SIZE_MAX / 4, 1);
    CHECK(l.used == SIZE_MAX, "%zu", l.used);
    dw_layout_take(&l, 1, 1);
    CHECK(l.used == SIZE_MAX, "%zu", l.used);
    dw_layout product = {0};
    dw_layout_take(&product, SIZE_MAX / 2, 4);
    CHECK(product.used == SIZE_MAX, "%zu", product.used);
}

static void huge_allocation(void) {
    dw_err err = {0};
    CHECK(!dw_alloc(SIZE_MAX / 2, 4, "the moon", &err));
    CHECK(strstr(err.text, "the moon"), "%s", err.text);
}

static void cursor_stops(void) {
    const uint8_t bytes[6] = {1, 0, 0, 0, 2, 0};
    dw_cursor c = {bytes, sizeof bytes, false};
    CHECK(dw_cursor_u32(&c) == 1);
    CHECK(dw_cursor_u32(&c) == 0 && c.failed);
    CHECK(dw_cursor_u64(&c) == 0, "reads after a failure give 0");
    CHECK(!dw_cursor_take(&(dw_cursor){bytes, 6, false}, SIZE_MAX));
}

static void utf8(void) {
    CHECK(dw_is_utf8("aé日👍", strlen("aé日👍")));
    const char *bad[] = {"\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\x80", "\xf0\x80\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) CHECK(!dw_is_utf8(bad[i], strlen(bad[i])), "case %zu", i);
    CHECK(!dw_is_utf8("a\0b", 3) && dw_utf8_len("a\0b", 3) == 1 && dw_utf8_len("日\xe9 ", 5) == 3);
}

/* Pieces that end before, at and behind the writer's 2 MB, in turn; the map begins at a multiple of 2 MB. */
static void pieces_of_a_file(void) {
    enum { UNIT = 2 << 20, ALL = 11 * UNIT };
    static const size_t pieces[] = {0, 1, UNIT - 1, UNIT, UNIT - 1, 1, 2 * UNIT + 5, UNIT - 6, 3 * UNIT, 1, UNIT + 7};
    dw_err err = {0};
    const char *path = test_path(test_folder(), "pieces");
    uint8_t *bytes = malloc(ALL);
    REQUIRE(bytes);
    for (size_t i = 0; i < ALL; i++) bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    dw_out *out = dw_out_open(path, &err);
    REQUIRE(out, "%s", err.text);
    size_t n = 0;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; n += pieces[i++])
        CHECK(!dw_out_write(out, bytes + n, pieces[i], &err), "%s", err.text);
    CHECK(!dw_out_commit(out, &err), "%s", err.text);
    dw_out_free(out);
    dw_map map;
    REQUIRE(!dw_map_file(&map, path, &err), "%s", err.text);
    CHECK(map.size == n && !memcmp(map.data, bytes, n), "%zu of %zu bytes", map.size, n);
    CHECK((uintptr_t)map.data % UNIT == 0);
    dw_unmap(&map);
    free(bytes);
}

static void whole_or_not(void) {
    dw_err err = {0};
    const char *path = test_path(test_folder(), "out.txt");
    dw_out *out = dw_out_open(path, &err);
    REQUIRE(out, "%s", err.text);
    CHECK(!dw_out_printf(out, &err, "%d\n", 42));
    dw_out_free(out);
    CHECK(access(path, F_OK), "nothing may appear without commit");

    out = dw_out_open(path, &err);
    REQUIRE(out, "%s", err.text);
    char *big = calloc(1, 3 << 20);
    CHECK(!dw_out_write(out, "x", 1, &err) && !dw_out_write(out, big, 3 << 20, &err));
    CHECK(!dw_out_commit(out, &err), "%s", err.text);
    dw_out_free(out);
    size_t size = 0;
    char *text = dw_read_file(path, 1 << 23, &size, &err);
    CHECK(text && size == (3u << 20) + 1 && text[0] == 'x', "%s", err.text);
    free(text);
    free(big);
    CHECK(!dw_read_file(path, 10, &size, &err) && strstr(err.text, "too large"));
    err = (dw_err){0};
    CHECK(!dw_read_text(path, 1 << 23, &size, &err) && strstr(err.text, "byte 0x00 at offset 1;"), "%s", err.text);
}

/* A file with that name appears, and its temporary name was one that file systems allow. */
static void check_long_name(const char *name) {
    dw_err err = {0};
    char path[600];
    snprintf(path, sizeof path, "%s/%s", test_folder(), name);
    dw_out *out = dw_out_open(path, &err);
    const char *temporary = out ? dw_out_temporary(out, &err) : NULL;
    REQUIRE(temporary, "%zu bytes: %s", strlen(name), err.text);
    const char *base = strrchr(temporary, '/') + 1;
    const size_t tail = strlen(".dw0123456789abcdef.part"), kept = strlen(base) - tail;
    CHECK(strlen(base) <= 255 && dw_out_is_temporary(base) && !strncmp(base, name, kept), "%s", base);
    CHECK(kept == strlen(name) || kept > 255 - tail - 4, "%zu bytes of %zu are kept", kept, strlen(name));
    CHECK(((unsigned char)name[kept] & 0xc0) != 0x80, "a character is cut");
    CHECK(!dw_out_commit(out, &err) && dw_file_exists(path) && !dw_file_exists(temporary), "%s", err.text);
    dw_out_free(out);
}

static void long_names(void) {
    dw_err err = {0};
    char name[300];
    for (size_t n = 229; n <= 255; n++) {
        memset(name, 'n', n);
        name[n] = 0;
        check_long_name(name);
        for (size_t i = 1; i + 2 <= n; i += 2) memcpy(name + i, "\xc3\xa9", 2);
        check_long_name(name);
    }
    memset(name, 'n', 256);
    name[256] = 0;
    CHECK(!dw_out_open(test_path(test_folder(), name), &err) && strstr(err.text, "File name too long"), "%s", err.text);
}

/* A new file is complete when it is checked, and replaces the old one only after that. */
static void checked(void) {
    const char *path = test_path(test_folder(), "checked.txt");
    const struct { dw_out_piece piece[2]; size_t n; const char *words; } cases[] = {
        {{{"new ", 4}, {"file", 4}}, 2, NULL},
        {{{"new ", 4}, {"FILE", 4}}, 2, "its bytes from 4 on"},
        {{{"new ", 4}}, 1, "8 bytes instead of 4"},
        {{{"new file and more", 17}}, 1, "its bytes from 0 on"}};
    for (int i = 0; i < 4; i++) {
        dw_err err = {0};
        save(&(test_bytes){.data = (uint8_t *)(uintptr_t) "old", .size = 3}, path);
        dw_out *out = dw_out_open(path, &err);
        REQUIRE(out && !dw_out_write(out, "new file", 8, &err), "%s", err.text);
        dw_out_pieces pieces = {cases[i].piece, cases[i].n};
        const int rc = dw_out_commit_checked(out, dw_out_holds, &pieces, &err);
        dw_out_free(out);
        size_t size;
        char *text = dw_read_file(path, 100, &size, NULL);
        CHECK(!rc == !cases[i].words && text && !strcmp(text, rc ? "old" : "new file"), "case %d: %s", i, err.text);
        if (rc)
            CHECK(strstr(err.text, "checked.txt' was not written") && strstr(err.text, cases[i].words), "%s", err.text);
        free(text);
    }
}

/* What a program has written and read back it may write again; what it has read it may not replace. */
static void written_again(void) {
    const char *path = test_path(test_folder(), "twice.txt"), *input = test_path(test_folder(), "input.txt");
    dw_err err = {0};
    size_t size;
    save(&(test_bytes){.data = (uint8_t *)(uintptr_t) "old", .size = 3}, input);
    dw_inputs_keep();
    free(dw_read_file(input, 100, &size, &err));
    CHECK(!dw_out_open(input, &err) && strstr(err.text, "input and output"), "%s", err.text);
    for (int i = 0; i < 2; i++) {
        dw_out *out = dw_out_open(path, &err);
        REQUIRE(out && !dw_out_write(out, "new", 3, &err), "%s", err.text);
        const dw_out_piece piece = {"new", 3};
        dw_out_pieces pieces = {&piece, 1};
        CHECK(!dw_out_commit_checked(out, dw_out_holds, &pieces, &err), "time %d: %s", i, err.text);
        dw_out_free(out);
    }
}

static void out_folder(void) {
    dw_err err = {0};
    const char *path = test_file("folder"), *names[] = {"a", "b"};
    for (int keep = 0; keep < 2; keep++) {
        dw_out_folder *f = dw_out_folder_open(path, &err);
        REQUIRE(f, "%s", err.text);
        for (int i = 0; i < 2; i++) {
            const char *file = dw_out_folder_file(f, names[i], &err);
            dw_out *out = file ? dw_out_open(file, &err) : NULL;
            CHECK(out && !dw_out_write(out, "x", 1, &err) && (i == keep || !dw_out_commit(out, &err)), "%s", err.text);
            dw_out_free(out);
        }
        CHECK(!dw_file_exists(path));
        if (keep) CHECK(!dw_out_folder_commit(f, &err), "%s", err.text);
        dw_out_folder_free(f);
        CHECK(dw_file_exists(path) == keep);
        CHECK(dw_file_exists(test_file("folder/a")) == keep && !dw_file_exists(test_file("folder/b")));
        CHECK(test_run("ls -d %s.*.part", path), "%s", test_run_output());
    }
}

static void sha256_known(void) {
    const char *known[][2] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                              {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}};
    for (int i = 0; i < 2; i++) {
        dw_sha256 h;
        uint8_t digest[32];
        char hex[65];
        dw_sha256_begin(&h);
        dw_sha256_add(&h, known[i][0], strlen(known[i][0]));
        dw_sha256_end(&h, digest);
        dw_hex(digest, 32, hex);
        CHECK(!strcmp(hex, known[i][1]), "%s", hex);
    }
    dw_sha256 h; // FIPS 180-4: a million letters a, here in pieces of 997
    uint8_t digest[32];
    char hex[65], piece[997];
    memset(piece, 'a', sizeof piece);
    dw_sha256_begin(&h);
    for (size_t left = 1000000; left;) {
        const size_t n = left < sizeof piece ? left : sizeof piece;
        dw_sha256_add(&h, piece, n);
        left -= n;
    }
    dw_sha256_end(&h, digest);
    dw_hex(digest, 32, hex);
    CHECK(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"), "%s", hex);
}

/* Messages are the bytes 0, 1, 2, ..; so is the key.  2-4: the paper's appendix A.  1-3: the vectors of Rust's standard
 * library.  The last ones, with a key of zeros, are CPython's hash() of bytes under PYTHONHASHSEED=0. */
static void siphash_known(void) {
    static const uint64_t known[] = {0xabac0158050fc4dc, 0xc9f49bf37d57ca93, 0x82cb9b024dc7d44d, 0x8bf80ab8e7ddf7fb,
                                     0xcf75576088d38328, 0xdef9d52f49533b67, 0xc50d2b50c59f22a7, 0xd3927d989bb11140,
                                     0x369095118d299a8e};
    dw_hash_key key;
    uint8_t message[64];
    for (int i = 0; i < 64; i++) message[i] = (uint8_t)i;
    memcpy(key.k, message, sizeof key.k);
    CHECK(dw_siphash(2, 4, key, message, 15) == 0xa129ca6149be45e5);
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        CHECK(dw_siphash13(key, message, n) == known[n], "%zu bytes: %016llx", n,
              (unsigned long long)dw_siphash13(key, message, n));
    key = (dw_hash_key){{0, 0}};
    CHECK((int64_t)dw_siphash13(key, "abc", 3) == -4594863902769663758);
    CHECK((int64_t)dw_siphash13(key, "12345678", 8) == 3785724242978802311);
    CHECK((int64_t)dw_siphash13(key, message, 64) == 8493894268803903686);
}

static void hash_keys_differ(void) {
    dw_hash_key a, b;
    dw_err err = {0};
    REQUIRE(!dw_hash_key_new(&a, &err) && !dw_hash_key_new(&b, &err), "%s", err.text);
    CHECK(a.k[0] != b.k[0] && a.k[1] != b.k[1]);
}

static void set_of_strings(void) {
    enum { N = 5000 };
    dw_set s = {0};
    dw_err err = {0};
    char text[16];
    CHECK(!dw_set_has(&s, "", 0), "an empty set has something");
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < N; i++) {
            const size_t n = i ? (size_t)snprintf(text, sizeof text, "%d", i) : 0; // number 0 is the empty string
            REQUIRE(dw_set_has(&s, text, n) == pass, "%d in pass %d", i, pass);
            REQUIRE(dw_set_add(&s, text, n, &err) == !pass, "%d in pass %d: %s", i, pass, err.text);
        }
    CHECK(s.n == N && !dw_set_has(&s, "12 ", 3) && !dw_set_has(&s, "5000", 4));
    dw_set_free(&s);
    CHECK(!dw_set_has(&s, "12", 2));
}

static void half_round_trip(void) {
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = dw_f16_to_f32((uint16_t)h), b = dw_bf16_to_f32((uint16_t)h);
        if (!isnan(f)) REQUIRE(dw_f32_to_f16(f) == h, "f16 %04x", h);
        if (!isnan(b)) REQUIRE(dw_f32_to_bf16(b) == h, "bf16 %04x", h);
    }
    CHECK(dw_f32_to_f16(65519.99f) == 0x7bff && dw_f32_to_f16(65520) == 0x7c00);
    CHECK(dw_f32_to_f16(0x1p-25f) == 0 && dw_f32_to_f16(0x1.000002p-25f) == 1, "half of the smallest: to even");
    CHECK(dw_f32_to_f16(1.00048828125f) == 0x3c00 && dw_f32_to_f16(1.00146484375f) == 0x3c02, "ties to even");
    CHECK(isnan(dw_f16_to_f32(dw_f32_to_f16(NAN))) && isnan(dw_bf16_to_f32(dw_f32_to_bf16(NAN))));
}

typedef struct barrier_job {
    dw_pool *pool;
    int turn[8], n, n_rounds;
    atomic_int wrong, n_came;
} barrier_job;

static void count_turns(void *arg, int ith, int n) {
    barrier_job *job = arg;
    for (int round = 1; round <= job->n_rounds; round++) {
        job->turn[ith] = round;
        dw_pool_barrier(job->pool);
        for (int i = 0; i < n; i++)
            if (job->turn[i] != round) atomic_fetch_add(&job->wrong, 1);
        dw_pool_barrier(job->pool);
    }
}

static void barriers(void) {
    for (int n = 1; n <= 5; n += 2) {
        dw_err err = {0};
        barrier_job job = {.pool = dw_pool_new(n, &err), .n_rounds = 300};
        REQUIRE(job.pool, "%s", err.text);
        for (int k = 0; k < 5; k++) dw_pool_run(job.pool, count_turns, &job);
        CHECK(atomic_load(&job.wrong) == 0, "%d threads", n);
        dw_pool_free(job.pool);
    }
}

static void count_threads(void *arg, int ith, int n) {
    barrier_job *job = arg;
    count_turns(arg, ith, n);
    atomic_fetch_add(&job->n_came, n == job->n ? 1 : 1000);
}

/* The number of threads changes from job to job, between spinning ones and parked ones. */
static void jobs_on_few(void) {
    dw_rng rng;
    dw_rng_seed(&rng, 5);
    barrier_job job = {.pool = dw_pool_new(5, NULL), .n_rounds = 5};
    REQUIRE(job.pool);
    for (int k = 0; k < 200; k++) {
        job.n = 1 + (int)dw_rng_below(&rng, 5);
        job.n_came = 0;
        dw_pool_rest(job.pool, job.n, 60);
        REQUIRE(dw_pool_present(job.pool) == job.n);
        dw_pool_run_on(job.pool, job.n, count_threads, &job);
        CHECK(job.n_came == job.n && !job.wrong, "%d threads: %d came", job.n, job.n_came);
        if (k % 40 == 0) usleep(3000); // they park
    }
    dw_pool_rest(job.pool, 2, 0);
    CHECK(dw_pool_present(job.pool) == 5, "the rest is over");
    dw_pool_free(job.pool);
}

static void best_numbers(void) {
    static const struct {
        int n, best;
        double lost[4];
    } cases[] = {
        {1, 1, {0.9}},
        {2, 2, {0, 0}},
        {2, 2, {0.5, 0}},         // as good as one alone
        {2, 1, {0.1, 0.5}},       // 0.8 of one thread's work, or 0.9
        {2, 2, {0.2, 0.3}},       // 1, or 0.8
        {2, 1, {1, 1}},           // nothing is right: one is least in the way
        {4, 3, {0, 0.5, 0, 0}},   // 2, or 3
        {4, 2, {0.6, 0, 0.4, 0}}, // 0, 1.8, or 2
        {4, 4, {0.02, 0.02, 0.02, 0.02}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double lost[4];
        memcpy(lost, cases[i].lost, sizeof lost);
        const int best = dw_pool_best(lost, cases[i].n);
        CHECK(best == cases[i].best, "case %zu: %d of %d, not %d", i, best, cases[i].n, cases[i].best);
    }
}

static void mark(void *arg, size_t i) { atomic_fetch_add(&((atomic_int *)arg)[i], 1); }

static void each_once(void) {
    dw_pool *pool = dw_pool_new(3, NULL);
    REQUIRE(pool);
    atomic_int seen[1000] = {0};
    dw_pool_each(pool, 1000, mark, seen);
    for (int i = 0; i < 1000; i++) REQUIRE(atomic_load(&seen[i]) == 1, "%d", i);
    dw_pool_free(pool);
}

static void same_numbers(void) {
    dw_rng a, b;
    dw_rng_seed(&a, 7);
    dw_rng_seed(&b, 7);
    double mean = 0, square = 0;
    for (int i = 0; i < 100000; i++) {
        const double x = dw_rng_normal(&a);
        REQUIRE(x == dw_rng_normal(&b));
        mean += x / 1e5;
        square += x * x / 1e5;
    }
    CHECK(fabs(mean) < 0.02 && fabs(square - 1) < 0.02, "mean %g, variance %g", mean, square);
    for (int i = 0; i < 1000; i++) CHECK(dw_rng_below(&a, 7) < 7);
}

static void text_grows(void) {
    dw_err err = {0};
    char *text = NULL;
    CHECK(!dw_append(&text, &err, "%s", "a") && !dw_append(&text, &err, "%d%s", 12, "b") && !strcmp(text, "a12b"), "%s",
          err.text);
    free(text);
}

/* Quotas of control groups, as the kernel writes them. */
static void quota_texts(void) {
    CHECK(dw_cpus_of_max("200000 100000\n") == 2 && dw_cpus_of_max("250000 100000\n") == 2.5 &&
          dw_cpus_of_max("50000 100000") == 0.5);
    CHECK(!dw_cpus_of_max("max 100000\n") && !dw_cpus_of_max("") && !dw_cpus_of_max("200000") &&
          !dw_cpus_of_max("200000 0") && !dw_cpus_of_max("-1 100000"));
    CHECK(dw_cpus_of_quota("400000\n", "100000\n") == 4 && !dw_cpus_of_quota("-1\n", "100000\n") &&
          !dw_cpus_of_quota("x", "y"));

    size_t n;
    const char *v2 = "0::/user.slice/session-2.scope\n";
    const char *v1 = "12:memory:/docker/ab\n4:cpu,cpuacct:/docker/cd\n3:cpuset:/docker/ef\n0::/\n", *path;
    CHECK((path = dw_cpus_group(v2, "", &n)) && n == 27 && !strncmp(path, "/user.slice/session-2.scope", n));
    CHECK((path = dw_cpus_group(v1, "cpu", &n)) && n == 10 && !strncmp(path, "/docker/cd", n),
          "not cpuset's, nor cpuacct's");
    CHECK((path = dw_cpus_group(v1, "", &n)) && n == 1);
    CHECK(!dw_cpus_group(v2, "cpu", &n) && !dw_cpus_group("", "", &n) && !dw_cpus_group("junk\n4:cpu\n::", "cpu", &n));
}

static void quota_of_groups(void) {
    const char *root = test_file("cgroup");
    REQUIRE(!test_run("mkdir -p %s/a/b/c %s/cpu/d && echo 400000 100000 >%s/a/cpu.max && echo 150000 100000 "
                      ">%s/a/b/cpu.max && echo max 100000 >%s/a/b/c/cpu.max",
                      root, root, root, root, root));
    CHECK(dw_cpus_allowed(root, "0::/a/b/c\n") == 1.5, "the smallest of all above");
    CHECK(dw_cpus_allowed(root, "0::/a\n") == 4 && !dw_cpus_allowed(root, "0::/\n") && !dw_cpus_allowed(root, ""));
    REQUIRE(!test_run("echo 300000 >%s/cpu/cpu.cfs_quota_us && echo 100000 >%s/cpu/cpu.cfs_period_us", root, root));
    REQUIRE(!test_run("echo -1 >%s/cpu/d/cpu.cfs_quota_us && echo 100000 >%s/cpu/d/cpu.cfs_period_us", root, root));
    CHECK(dw_cpus_allowed(root, "0::/\n4:cpu,cpuacct:/d\n") == 3, "version 1");
    CHECK(dw_cpus_allowed(root, "4:cpu,cpuacct:/docker/of-the-host\n") == 3, "a path that is the host's");
}

static void note_mask(void *arg, int ith, int n) {
    (void)n;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    ((int *)arg)[ith] = sigismember(&mask, SIGINT) + 2 * sigismember(&mask, SIGTERM) + 4 * sigismember(&mask, SIGBUS);
}

/* A handler in a worker could meet what the program's own thread is changing. */
static void signals_of_threads(void) {
    dw_err err = {0};
    int blocked[3] = {-1, -1, -1};
    dw_pool *pool = dw_pool_new(3, &err);
    REQUIRE(pool, "%s", err.text);
    dw_pool_run(pool, note_mask, blocked);
    CHECK(blocked[0] == 0 && blocked[1] == 3 && blocked[2] == 3, "%d %d %d", blocked[0], blocked[1], blocked[2]);
    dw_pool_free(pool);
}

static const test_case cases[] = {
    {"the first failure wins, and NULL takes none", first_failure_wins},
    {"a path of any length leaves room for the reason", long_paths},
    {"control bytes in names do not reach the terminal", control_bytes},
    {"text from files is shown with controls and turns of direction as escapes", shown_text},
    {"an allocation whose size overflows is refused by name", huge_allocation},
    {"pages are zero, and nothing beyond their end can be read", pages},
    {"a layout whose sum overflows stays too large", huge_layout},
    {"text grows by what is put behind it", text_grows},
    {"a cursor never reads beyond its bytes", cursor_stops},
    {"UTF-8 is checked strictly", utf8},
    {"an output file appears whole or not at all", whole_or_not},
    {"an output file holds its pieces, and its map begins where a huge page can", pieces_of_a_file},
    {"every name that a file system allows can be written, and a longer one fails at the beginning", long_names},
    {"a new file replaces the old one only after its check", checked},
    {"a file that was written and checked is no input: it may be written again", written_again},
    {"a folder of files appears whole or not at all", out_folder},
    {"SHA-256 gives the published digests", sha256_known},
    {"SipHash gives the published values", siphash_known},
    {"each hash table gets its own random key", hash_keys_differ},
    {"a set has what was added, once", set_of_strings},
    {"half precision round-trips every value and rounds to even", half_round_trip},
    {"no thread passes a barrier before all have come", barriers},
    {"a job runs on as many threads as it is told", jobs_on_few},
    {"threads that lose their cores stay out where the others do more without them", best_numbers},
    {"dw_pool_each runs every index exactly once", each_once},
    {"signals that end a program come to its own thread only", signals_of_threads},
    {"the quota of a control group is read as the kernel writes it", quota_texts},
    {"every control group above a process limits its processors", quota_of_groups},
    {"a seed gives the same numbers, normal ones of unit variance", same_numbers},
    {0},
};
TEST_MAIN(cases)
