/* paths.c - checks the files that a command line names: whether inputs can be read and outputs can be written.
 *
 * The check is at the start, so that a program does not fail after an hour of work.  An output replaces only a file of
 * its own kind (content.h), because a wrong name must not cost an hour of work either.  All parts of a split model are
 * inputs.  Which files of a folder are inputs is known only when a reader opens them; outputs are compared with these
 * when they are opened and when they are committed (base.h, dw_inputs_keep). */
#include "kit/kit_own.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- inputs ----------------------------------------------------------------------------------------- */

static void add_input(const char *path) {
    dw_err err = {0};
    if (dw_input_named(path, &err)) die_err(&err);
}

static void add_parts(const char *path) {
    const size_t n = dw_split_count(path);
    for (size_t i = 0; i < n; i++) {
        char *part = tool_need(dw_split_name(path, i, NULL), "the name of an input");
        add_input(part);
        free(part);
    }
}

static int check_input(const char *path, const opt_row *row, dw_err *err) {
    struct stat st;
    if (!strcmp(path, "-") && row->flags & OPT_STDIN) return 0;
    if (!strcmp(path, "-"))
        die_usage("%s: this input cannot come from standard input; give a file name ('./-' for a file called '-')",
                  opt_label(row));
    if (access(path, R_OK) || stat(path, &st))
        return dw_fail(err, "cannot open '%s' (%s): %s", path, opt_label(row), strerror(errno));
    if (S_ISREG(st.st_mode))
        add_parts(path);
    else if (!S_ISDIR(st.st_mode))
        return dw_fail(err, "cannot read '%s' (%s): it is %s, not a regular file", path, opt_label(row),
                       dw_file_kind(st.st_mode));
    return 0;
}

static void check_inputs(const opt_row *rows) {
    dw_err err = {0};
    for (const opt_row *row = rows; !opt_is_end(row); row++) {
        if (!opt_is_value(row) || !(row->flags & OPT_INPUT)) continue;
        size_t n;
        int rc = 0;
        char **value = opt_values(row, &n);
        for (size_t i = 0; i < n; i++) {
            if (!rc) rc = check_input(value[i], row, &err);
            free(value[i]);
        }
        free(value);
        if (rc) die_err(&err);
    }
}

/* ---- outputs ---------------------------------------------------------------------------------------- */

enum { MAX_OUTPUTS = 32 };

/* A file that the program may make.  Two outputs are the same file if folder and name are equal. */
typedef struct output {
    const opt_row *row;
    enum output_use {NAMED, KEPT, BESIDE} use; // as given; FILE.part; a file that comes with it
    char *path;
    unsigned holds; // kit_content; 0: any
    struct stat folder;
    char *name;
} output;

typedef struct output_list {
    output item[MAX_OUTPUTS];
    int n;
} output_list;

static bool is_folder(const output *o) { return o->row->flags & OPT_FOLDER; }

static void die_unwritable(const output *o, int why) {
    die("cannot %s '%s': %s", is_folder(o) ? "create" : "write", o->path, strerror(why));
}

static void check_kind(const output *o) {
    struct stat st;
    const bool ends_in_slash = o->path[strlen(o->path) - 1] == '/';
    if (stat(o->path, &st)) {
        if (errno != ENOENT) die_unwritable(o, errno); // a name that is too long, for example
        if (ends_in_slash && !is_folder(o)) die("cannot write '%s': a file's name does not end in '/'", o->path);
        return;
    }
    if (is_folder(o)) return;
    if (!S_ISREG(st.st_mode)) die("cannot write '%s': it is %s, not a regular file", o->path, dw_file_kind(st.st_mode));
    if (!dw_is_input(o->path, true)) return;
    if (o->use == KEPT)
        die("'%s' is an input, but %s would store an unfinished run there; choose another name for one of them",
            o->path, opt_label(o->row));
    if (o->use == BESIDE)
        die("'%s' is an input, but %s would write a file of that name; rename the input or choose another output",
            o->path, opt_label(o->row));
    die("'%s' is input and output at once; choose another name for %s", o->path, opt_label(o->row));
}

static void check_content(const output *o) {
    const kit_content found = o->holds ? kit_content_of(o->path) : KIT_NOTHING;
    if (found && !(found & o->holds))
        die("'%s' is %s, not %s; choose another name for %s, or remove that file first", o->path,
            kit_content_name(found), kit_content_name(o->holds), opt_label(o->row));
}

static void check_folder(output *o) {
    char *copy = tool_need(strdup(o->path), opt_label(o->row));
    const char *folder = dirname(copy);
    if (access(folder, F_OK) && errno == ENOENT)
        die("cannot %s '%s': there is no folder '%s'; make it first", is_folder(o) ? "create" : "write", o->path,
            folder);
    if (access(folder, W_OK | X_OK) || stat(folder, &o->folder)) die_unwritable(o, errno);
    free(copy);
}

static bool is_same(const output *a, const output *b) {
    return a->folder.st_dev == b->folder.st_dev && a->folder.st_ino == b->folder.st_ino && !strcmp(a->name, b->name);
}

static void check_distinct(const output_list *list, const output *o) {
    for (const output *other = list->item; other < o; other++) {
        if (!is_same(other, o)) continue;
        char first[64];
        snprintf(first, sizeof first, "%s", opt_label(other->row));
        die("'%s' is given for both %s and %s; give two different names", o->path, first, opt_label(o->row));
    }
}

/* Takes ownership of path. */
static void add_output(output_list *list, const opt_row *row, char *path, enum output_use use, unsigned holds) {
    if (list->n == MAX_OUTPUTS) die("more than %d outputs", MAX_OUTPUTS);
    output *o = &list->item[list->n++];
    *o = (output){.row = row, .use = use, .holds = holds, .path = tool_need(path, opt_label(row))};
    char *copy = tool_need(strdup(path), opt_label(row));
    o->name = tool_need(strdup(basename(copy)), opt_label(row)); // basename, so that "folder/" has a name, too
    free(copy);
    check_kind(o);
    check_folder(o);
    check_distinct(list, o);
}

/* The path that an option names for writing; NULL: none, or standard output. */
static const char *output_of(const opt_row *row) {
    const bool is_output = row->kind == OPT_PATH && (row->letter == 'o' || row->flags & (OPT_OUTPUT | OPT_FOLDER));
    const char *path = is_output ? *(const char **)row->target : NULL;
    return !path || (!strcmp(path, "-") && row->flags & OPT_STDOUT) ? NULL : path;
}

static size_t n_derived(const opt_row *row) {
    return row->kind == OPT_FLAG && *(bool *)row->target ? row->n_derived : 0;
}

static char *derived(const opt_row *row, size_t i) { return tool_need(row->derived(i), opt_label(row)); }

static void print_derived(const opt_row *row) {
    for (size_t i = 0; i < n_derived(row); i++) {
        char *path = derived(row, i);
        printf("output %s\n", path);
        free(path);
    }
}

/* A path with a line end is left out: whoever reads the lines could take its rest for another line. */
static void print_inputs(const opt_row *row) {
    size_t n;
    char **value = opt_values(row, &n);
    for (size_t i = 0; i < n; i++) {
        if (strcmp(value[i], "-") != 0 && !strchr(value[i], '\n')) printf("input %s\n", value[i]);
        free(value[i]);
    }
    free(value);
}

void paths_print(const opt_program *program) {
    for (const opt_row *row = program->rows; !opt_is_end(row); row++) {
        if (opt_is_value(row) && output_of(row)) printf("output %s\n", output_of(row));
        print_derived(row);
    }
    for (const opt_row *row = program->rows; !opt_is_end(row); row++)
        if (opt_is_value(row) && row->flags & OPT_INPUT) print_inputs(row);
}

static void add_outputs(output_list *list, const opt_row *row) {
    const char *path = output_of(row);
    for (size_t i = 0; i < n_derived(row); i++) add_output(list, row, derived(row, i), BESIDE, row->holds);
    if (!path) return;
    if (!strcmp(path, "-"))
        die_usage("%s: this output cannot go to standard output; give a file name ('./-' for a file called '-')",
                  opt_label(row));
    add_output(list, row, strdup(path), NAMED, row->holds);
    if (row->flags & OPT_KEEPS) add_output(list, row, dw_format(NULL, "%s.part", path), KEPT, 0);
    if (row->beside) add_output(list, row, dw_format(NULL, "%s%s", path, row->beside), BESIDE, row->beside_holds);
}

int tool_other_run(const char *path, dw_err *err) {
    return dw_fail(err,
                   "'%s' is of another run (other models, texts, options or CPU level); remove it to begin again, or "
                   "choose another -o",
                   path);
}

void paths_check(const opt_program *program) {
    output_list list = {.n = 0};
    check_inputs(program->rows);
    for (const opt_row *row = program->rows; !opt_is_end(row); row++) add_outputs(&list, row);
    for (int i = 0; i < list.n; i++) {
        check_content(&list.item[i]);
        free(list.item[i].path);
        free(list.item[i].name);
    }
}
