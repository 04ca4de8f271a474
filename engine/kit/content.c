/* content.c - what a file holds, told by its first bytes. */
#include "kit/content.h"
#include "base/base.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Files that begin with `first`; NULL: none are found so. */
static const struct {
    kit_content content;
    const char *first, *name;
} contents[] = {
    {KIT_GGUF, "GGUF", "a GGUF model"},
    {KIT_STATS, "deadwood stats ", "a file of statistics"},
    {KIT_GRAM, "deadwood gram ", "a file of Gram matrices"},
    {KIT_TRACES, "deadwood traces ", "a file of traces"},
    {KIT_PREDICTIONS, "dw-base", "a file of stored predictions"},
    {KIT_PLAN, "# deadwood plan ", "a plan"},
    {KIT_ROWS, "# deadwood rows", "a table of results"},
    {KIT_SCORES, "# deadwood scores", "a table of scores"},
    {KIT_PICTURE, "\x89PNG", "a picture"},
    {KIT_PICTURE, "%PDF-", "a picture"},
    {KIT_PICTURE, "<?xml", "a picture"},
    {KIT_PICTURE, "<svg", "a picture"},
    {KIT_IMATRIX, NULL, "an importance matrix"},
    {KIT_TEXT, NULL, "a text"},
    {KIT_OTHER, NULL, "a file of an unknown kind"},
};
enum { N_CONTENTS = sizeof contents / sizeof *contents };

/* Not by dw_open_input, which would remember the file as an input, and no output replaces one. */
static size_t read_first(const char *path, char *first, size_t n) {
    FILE *f = fopen(path, "rbe");
    const size_t got = f ? fread(first, 1, n, f) : 0;
    if (f) fclose(f);
    return got;
}

/* Both forms begin so (imatrix.h): GGUF with the key general.type, the old form with a matrix's name after two numbers. */
static bool is_imatrix(const char *first, size_t n) {
    static const char key[] = "general.type\x08\0\0\0\x07\0\0\0\0\0\0\0imatrix", end[] = ".weight";
    const size_t n_end = sizeof end - 1;
    if (n > 4 && !memcmp(first, "GGUF", 4)) return memmem(first, n, key, sizeof key - 1) != NULL;
    if (n < 8) return false;
    const uint32_t n_entries = dw_le32((const uint8_t *)first), len = dw_le32((const uint8_t *)first + 4);
    return n_entries && n_entries < 1 << 20 && len > n_end && len <= n - 8 &&
           !memcmp(first + 8 + len - n_end, end, n_end);
}

kit_content kit_content_of(const char *path) {
    struct stat st;
    char first[4096];
    if (stat(path, &st) || !S_ISREG(st.st_mode) || !st.st_size) return KIT_NOTHING;
    const size_t n = read_first(path, first, sizeof first);
    if (is_imatrix(first, n)) return KIT_IMATRIX;
    for (int i = 0; i < N_CONTENTS; i++) {
        const size_t len = contents[i].first ? strlen(contents[i].first) : 0;
        if (len && n >= len && !memcmp(first, contents[i].first, len)) return contents[i].content;
    }
    return n && !memchr(first, 0, n) ? KIT_TEXT : KIT_OTHER;
}

const char *kit_content_name(unsigned wanted) {
    for (int i = 0; i < N_CONTENTS; i++)
        if (wanted & contents[i].content) return contents[i].name;
    return "nothing";
}
