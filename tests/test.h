/* test.h - how a test file is written: functions that check, and a table of sentences at its end.
 *
 *     static void cut_twice(void) { CHECK(a == b, "got %d", a); }
 *     static const test_case cases[] = {
 *         {"cutting A then B equals cutting A and B at once", cut_twice},
 *         {0}};
 *     TEST_MAIN(cases)
 *
 * `build/test_x --list` prints the sentences, `build/test_x WORDS` runs those that contain WORDS.  A failed
 * check is reported and the test goes on; SKIP ends it and says why. */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stdio.h>

typedef struct test_case {
    const char *sentence;
    void (*run)(void);
} test_case;

/* Counts a failure and prints where and why, unless ok.  Returns ok. */
bool test_check(bool ok, const char *file, int line, const char *expression, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
int test_main(const test_case *cases, const char *file, int argc, char **argv);

#define CHECK(condition, ...) test_check((condition), __FILE__, __LINE__, #condition, "  " __VA_ARGS__)
#define REQUIRE(condition, ...) do { if (!CHECK(condition, __VA_ARGS__)) return; } while (0)
#define SKIP(...) do { test_skip(__VA_ARGS__); return; } while (0)
#define TEST_MAIN(cases) int main(int argc, char **argv) { return test_main(cases, __FILE__, argc, argv); }

/* The folder with reference models and oracles: $DW_SHARED or ../shared; NULL when it is not there. */
const char *test_shared(void);
/* A fresh folder for this test program's files, removed at its end. */
const char *test_folder(void);
/* "%s/%s" in a rotating set of static buffers. */
const char *test_path(const char *folder, const char *name);
/* A path in test_folder(); the same name gives the same text, which stays. */
const char *test_file(const char *name);

/* Runs a command line in which "deadwood-NAME" means the program built beside this test; its output goes to `log` of
 * test_folder().  Returns the exit status, or 128 + the signal. */
int test_run(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What the last test_run printed; static storage. */
const char *test_run_output(void);
/* Runs this program's cases that contain the words once more where no file can be without a name (O_TMPFILE), with more
 * faults ("FAULT_LATE_LOCK=1", preload_faults.c) or "". */
void test_again_with_names(const char *words, const char *faults);
/* True when the long tests were asked for ($DW_SLOW). */
bool test_slow(void);

#endif
