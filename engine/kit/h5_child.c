/* h5_child.c - reads an HDF5 file under limits and answers requests over a socket (h5_child.h). */
#include "kit/h5_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif
#include <sys/time.h>
#include <unistd.h>

enum {
    MORE_BYTES = 48 << 20,
    MILLISECONDS = KIT_H5_SHADOW ? 4000 : 500, // sanitizers are slow
    BYTES_PER_SECOND = 16 << 20,
    PIECE_BYTES = 1 << 20,
    SOCKET = 3 // descriptor of the socket in the child
};

/* ---- limits ---------------------------------------------------------------------------------------------------- */

static void limit(int what, rlim_t most) {
    struct rlimit now;
    if (getrlimit(what, &now)) _exit(1);
    if (now.rlim_max != RLIM_INFINITY && now.rlim_max < most) most = now.rlim_max;
    now.rlim_cur = now.rlim_max = most;
    if (setrlimit(what, &now)) _exit(1);
}

/* On Linux the first number of /proc/self/statm is the size of the address space in pages. */
static void limit_memory(void) {
    char text[64] = "";
    const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    const ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    const rlim_t page = (rlim_t)sysconf(_SC_PAGESIZE);
    if (n > 0 && !KIT_H5_SHADOW) limit(RLIMIT_AS, (rlim_t)strtoull(text, NULL, 10) * page + MORE_BYTES);
}

/* Adds to the CPU time that is left; at 0 SIGPROF ends the child. */
static void add_time(double seconds) {
    struct itimerval left;
    if (getitimer(ITIMER_PROF, &left)) _exit(1);
    seconds += (double)left.it_value.tv_sec + (double)left.it_value.tv_usec * 1e-6;
    left.it_value.tv_sec = (time_t)seconds;
    left.it_value.tv_usec = 1 + (suseconds_t)((seconds - (double)left.it_value.tv_sec) * 999998); // 0: no limit
    if (setitimer(ITIMER_PROF, &left, NULL)) _exit(1);
}

/* The child ignores signals that end a whole group: the program gets them, too, and closes the socket. */
static void default_signals(void) {
    sigset_t none;
    for (int s = 1; s < NSIG; s++) signal(s, s == SIGINT || s == SIGTERM || s == SIGHUP ? SIG_IGN : SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static void close_from(int first) {
#ifdef SYS_close_range
    if (!syscall(SYS_close_range, (unsigned)first, ~0u, 0)) return;
#endif
    const long most = sysconf(_SC_OPEN_MAX);
    for (int i = first; i < (most > 0 && most < 4096 ? most : 4096); i++) close(i);
}

/* Keeps the socket as descriptor 3 and /dev/null as 0 to 2; closes all others. */
static void keep_only(int fd) {
    const int socket = fcntl(fd, F_DUPFD, SOCKET), null = open("/dev/null", O_RDWR);
    if (socket < 0 || null < 0) _exit(1);
    for (int i = 0; i < SOCKET; i++)
        if (dup2(null, i) < 0) _exit(1);
    if (dup2(socket, SOCKET) < 0) _exit(1);
    close_from(SOCKET + 1);
}

static void enter_limits(int fd) {
    default_signals();
    keep_only(fd);
    limit_memory();
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_FSIZE, 0);
    limit(RLIMIT_NOFILE, 0);
    add_time(MILLISECONDS / 1e3);
}

/* ---- the socket ------------------------------------------------------------------------------------------------ */

static void send_all(const void *data, size_t size) {
    const uint8_t *at = data;
    while (size) {
        const ssize_t n = write(SOCKET, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(0);
        at += n, size -= (size_t)n;
    }
}

/* Ends the child when the program has closed the socket. */
static void receive(void *data, size_t size) {
    uint8_t *at = data;
    while (size) {
        const ssize_t n = read(SOCKET, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) _exit(0);
        at += n, size -= (size_t)n;
    }
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

/* Callbacks of the library's memory driver: they give it the mapped bytes without a copy. */
static void *image_malloc(size_t size, H5FD_file_image_op_t op, void *image) {
    const dw_map *map = image;
    (void)op;
    return size == map->size ? (void *)(uintptr_t)map->data : NULL;
}
static void *image_memcpy(void *to, const void *from, size_t size, H5FD_file_image_op_t op, void *image) {
    (void)size, (void)op, (void)image;
    return to == from ? to : NULL;
}
static void *image_realloc(void *at, size_t size, H5FD_file_image_op_t op, void *image) {
    (void)at, (void)size, (void)op, (void)image;
    return NULL;
}
static herr_t image_free(void *at, H5FD_file_image_op_t op, void *image) {
    (void)at, (void)op, (void)image;
    return 0;
}
static void *same_image(void *image) { return image; }
static herr_t keep_image(void *image) {
    (void)image;
    return 0;
}

static hid_t open_image(const dw_map *map) {
    H5FD_file_image_callbacks_t calls = {image_malloc, image_memcpy, image_realloc, image_free, same_image, keep_image,
                                         (void *)(uintptr_t)map};
    const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (H5Pset_fapl_core(access, PIECE_BYTES, 0) < 0 || H5Pset_file_image_callbacks(access, &calls) < 0 ||
        H5Pset_file_image(access, (void *)(uintptr_t)map->data, map->size) < 0)
        return -1;
    return H5Fopen("image", H5F_ACC_RDONLY, access); // the name is not opened: no descriptors are left
}

enum { N_OPEN = 4 }; // datasets kept open: a program reads a few in turn, and each keeps its chunk decoded

typedef struct dataset {
    hid_t set;          // below 0: none
    kit_h5_request of;  // the request that opened it
    kit_h5_answer told; // the answer to that request
    size_t chunk_bytes; // decoded to read any part of a chunk; 0: not in chunks
} dataset;

typedef struct reader {
    hid_t file, string, half;
    dataset open[N_OPEN], *at; // at: the dataset of the last request
    uint8_t *piece;            // PIECE_BYTES
    double earned;             // seconds of CPU time that are not added yet
} reader;

/* Adds CPU time in steps of 10 ms, so that most requests need no system call for it. */
static void earn_time(reader *r, double seconds) {
    r->earned += seconds;
    if (r->earned < 0.01) return;
    add_time(r->earned);
    r->earned = 0;
}

static hid_t file_type(const reader *r, uint32_t type) {
    switch (type) {
    case KIT_H5_U8: return H5T_STD_U8LE;
    case KIT_H5_U32: return H5T_STD_U32LE;
    case KIT_H5_U64: return H5T_STD_U64LE;
    case KIT_H5_I32: return H5T_STD_I32LE;
    case KIT_H5_F16: return r->half;
    case KIT_H5_F32: return H5T_IEEE_F32LE;
    case KIT_H5_F64: return H5T_IEEE_F64LE;
    default: return r->string;
    }
}

static hid_t memory_type(const reader *r, uint32_t type) {
    switch (type) {
    case KIT_H5_U32: return H5T_NATIVE_UINT32;
    case KIT_H5_U64: return H5T_NATIVE_UINT64;
    case KIT_H5_I32: return H5T_NATIVE_INT32;
    case KIT_H5_F32: return H5T_NATIVE_FLOAT;
    case KIT_H5_F64: return H5T_NATIVE_DOUBLE;
    default: return file_type(r, type);
    }
}

/* Whether every component of the path exists and is a hard link. */
static bool has(const reader *r, const char *path) {
    char part[KIT_H5_PATH_BYTES];
    for (const char *end = path; *end;) {
        end += strcspn(end, "/");
        snprintf(part, sizeof part, "%.*s", (int)(end - path), path);
        H5L_info_t info;
        if (H5Lexists(r->file, part, H5P_DEFAULT) <= 0 || H5Lget_info(r->file, part, &info, H5P_DEFAULT) < 0)
            return false;
        if (info.type != H5L_TYPE_HARD) return false;
        if (*end) end++;
    }
    return true;
}

static bool is_known_filter(hid_t how, unsigned i) {
    unsigned flags, config;
    size_t n_elements = 0;
    const H5Z_filter_t f = H5Pget_filter2(how, i, &flags, &n_elements, NULL, 0, NULL, &config);
    return f == H5Z_FILTER_DEFLATE || f == H5Z_FILTER_SHUFFLE;
}

/* The library allocates whole chunks, so a chunk must not be larger than its dataset. */
static bool is_small_chunk(hid_t how, int rank, const uint64_t dims[2], size_t value_size, size_t *n_bytes) {
    hsize_t chunk[2] = {0, 0};
    if (H5Pget_chunk(how, rank, chunk) != rank) return false;
    size_t n = value_size;
    for (int i = 0; i < rank; i++)
        if (!chunk[i] || chunk[i] > dims[i] || !dw_mul(n, chunk[i], &n)) return false;
    *n_bytes = n;
    return n <= KIT_H5_MAX_CHUNK;
}

/* Whether the dataset is stored in this file as this project stores datasets.  Sets told.n_stored and chunk_bytes; told
 * has the rank and dimensions. */
static bool is_plain(dataset *d, size_t value_size) {
    kit_h5_answer *told = &d->told;
    const int rank = told->value;
    const hid_t how = H5Dget_create_plist(d->set);
    if (how < 0) return false;
    const H5D_layout_t layout = H5Pget_layout(how);
    const int n_filters = layout == H5D_CHUNKED ? H5Pget_nfilters(how) : 0;
    size_t n_bytes;
    bool ok = H5Pget_external_count(how) == 0 && n_filters >= 0;
    for (int i = 0; i < n_filters && ok; i++) ok = is_known_filter(how, (unsigned)i);
    told->n_stored = H5Dget_storage_size(d->set);
    if (layout == H5D_CHUNKED)
        ok = ok && is_small_chunk(how, rank, told->dims, value_size, &d->chunk_bytes);
    else if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT)
        ok = false;
    else if (!dw_mul(told->dims[0], rank == 2 ? told->dims[1] : 1, &n_bytes) || !dw_mul(n_bytes, value_size, &n_bytes))
        ok = false;
    else
        ok = ok && told->n_stored == n_bytes;
    H5Pclose(how);
    return ok;
}

static uint32_t describe(const reader *r, dataset *d, uint32_t type) {
    kit_h5_answer *a = &d->told;
    const hid_t own = H5Dget_type(d->set), space = H5Dget_space(d->set);
    hsize_t dims[2] = {0, 0};
    uint32_t fault = KIT_H5_FINE;
    a->value = space < 0 ? -1 : H5Sget_simple_extent_ndims(space);
    if (own < 0 || H5Tequal(own, file_type(r, type)) <= 0)
        fault = KIT_H5_OTHER_TYPE;
    else if (a->value < 1 || a->value > 2 || H5Sget_simple_extent_dims(space, dims, NULL) < 0)
        fault = KIT_H5_OTHER_RANK;
    a->dims[0] = dims[0], a->dims[1] = dims[1];
    const size_t size = kit_h5_type_size((kit_h5_type)type);
    if (!fault && !is_plain(d, size)) fault = KIT_H5_OTHER_STORAGE;
    if (own >= 0) H5Tclose(own);
    if (space >= 0) H5Sclose(space);
    return fault;
}

static bool is_of(const dataset *d, const kit_h5_request *q) {
    return d->set >= 0 && q->type == d->of.type && !strcmp(q->path, d->of.path);
}

/* Opens the dataset of a request unless it is open; closes another one to make room. */
static void open_set(reader *r, const kit_h5_request *q, kit_h5_answer *a) {
    for (dataset *d = r->open; d < r->open + N_OPEN; d++) {
        if (!is_of(d, q)) continue;
        r->at = d;
        *a = d->told;
        return;
    }
    dataset *d = r->at = r->open + (r->at - r->open + 1) % N_OPEN;
    if (d->set >= 0) H5Dclose(d->set);
    *d = (dataset){.set = -1, .of = *q};
    if (!has(r, q->path)) d->told.fault = KIT_H5_MISSING;
    else if ((d->set = H5Dopen2(r->file, q->path, H5P_DEFAULT)) < 0) d->told.fault = KIT_H5_NO_SET;
    else d->told.fault = describe(r, d, q->type);
    *a = d->told;
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef struct block { // of a dataset
    hsize_t first[2], n[2];
} block;

static bool read_block(const reader *r, const block *b, void *to) {
    const hid_t all = H5Dget_space(r->at->set), memory = H5Screate_simple(2, b->n, NULL);
    bool ok = all >= 0 && memory >= 0 && H5Sselect_hyperslab(all, H5S_SELECT_SET, b->first, NULL, b->n, NULL) >= 0;
    ok = ok && H5Dread(r->at->set, memory_type(r, r->at->of.type), memory, all, H5P_DEFAULT, to) >= 0;
    if (all >= 0) H5Sclose(all);
    if (memory >= 0) H5Sclose(memory);
    return ok;
}

/* Sends rows in pieces: several rows, or a part of a row that is longer than a piece. */
static void send_rows(reader *r, const kit_h5_request *q, size_t cols) {
    const size_t size = kit_h5_type_size((kit_h5_type)q->type), per_piece = PIECE_BYTES / size;
    const size_t most_rows = per_piece / cols ? per_piece / cols : 1, most_cols = cols < per_piece ? cols : per_piece;
    for (size_t row = 0, n_rows; row < q->n; row += n_rows) {
        n_rows = q->n - row < most_rows ? q->n - row : most_rows;
        for (size_t col = 0, n_cols; col < cols; col += n_cols) {
            n_cols = cols - col < most_cols ? cols - col : most_cols;
            const block b = {{q->first + row, col}, {n_rows, n_cols}};
            earn_time(r, (double)(n_rows * n_cols * size) / BYTES_PER_SECOND);
            if (!read_block(r, &b, r->piece)) _exit(1);
            send_all(r->piece, n_rows * n_cols * size);
        }
    }
}

static void send_text(reader *r, const char *text) {
    const uint64_t n = text ? strlen(text) : 0;
    earn_time(r, (double)n / BYTES_PER_SECOND + 1e-4);
    send_all(&n, sizeof n);
    send_all(text, n);
}

/* Reads strings one by one, because many strings that share their bytes would together take memory without limit. */
static void send_strings(reader *r, const kit_h5_request *q) {
    for (uint64_t i = 0; i < q->n; i++) {
        char *text = NULL;
        if (!read_block(r, &(block){{q->first + i, 0}, {1, 1}}, &text)) _exit(1);
        send_text(r, text);
        H5free_memory(text);
    }
}

static void answer_rows(reader *r, const kit_h5_request *q, kit_h5_answer *a) {
    open_set(r, q, a);
    const size_t cols = a->dims[1] ? a->dims[1] : 1;
    size_t n = 0;
    const bool inside = q->first <= a->dims[0] && q->n <= a->dims[0] - q->first && dw_mul(q->n, cols, &n);
    if (!a->fault && !inside) a->fault = KIT_H5_UNREADABLE;
    a->n_bytes = q->type == KIT_H5_STRING ? 0 : n * kit_h5_type_size((kit_h5_type)q->type);
    send_all(a, sizeof *a);
    if (a->fault) return;
    earn_time(r, (double)r->at->chunk_bytes / (4.0 * BYTES_PER_SECOND)); // one row may need a whole chunk decoded
    if (q->type == KIT_H5_STRING) send_strings(r, q);
    else send_rows(r, q, cols);
}

/* ---- attributes of the root ------------------------------------------------------------------------------------- */

/* Reads a scalar of a type into *value. */
static bool read_attribute(const reader *r, const char *name, uint32_t type, void *value) {
    const hid_t a = H5Aexists(r->file, name) > 0 ? H5Aopen(r->file, name, H5P_DEFAULT) : -1;
    const hid_t own = a < 0 ? -1 : H5Aget_type(a), space = a < 0 ? -1 : H5Aget_space(a);
    bool ok = own >= 0 && space >= 0 && H5Tequal(own, file_type(r, type)) > 0;
    ok = ok && H5Sget_simple_extent_type(space) == H5S_SCALAR && H5Aread(a, memory_type(r, type), value) >= 0;
    if (own >= 0) H5Tclose(own);
    if (space >= 0) H5Sclose(space);
    if (a >= 0) H5Aclose(a);
    return ok;
}

static void answer_text(reader *r, const kit_h5_request *q, kit_h5_answer *a) {
    char *text = NULL;
    if (!read_attribute(r, q->path, KIT_H5_STRING, &text)) a->fault = KIT_H5_MISSING;
    send_all(a, sizeof *a);
    if (!a->fault) send_text(r, text);
    H5free_memory(text);
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static void serve(reader *r) {
    for (;;) {
        kit_h5_request q;
        kit_h5_answer a = {.fault = KIT_H5_FINE};
        receive(&q, sizeof q);
        q.path[sizeof q.path - 1] = 0;
        earn_time(r, 1e-4);
        switch (q.what) {
        case KIT_H5_HAS: a.fault = has(r, q.path) ? KIT_H5_FINE : KIT_H5_MISSING; break;
        case KIT_H5_SET: open_set(r, &q, &a); break;
        case KIT_H5_INT:
            a.fault = read_attribute(r, q.path, KIT_H5_I32, &a.value) ? KIT_H5_FINE : KIT_H5_MISSING;
            break;
        case KIT_H5_ROWS: answer_rows(r, &q, &a); continue;
        default: answer_text(r, &q, &a); continue;
        }
        send_all(&a, sizeof a);
    }
}

static _Noreturn void run(const dw_map *map, int fd) {
    enter_limits(fd);
    kit_h5_quiet();
    reader r = {.file = open_image(map), .string = kit_h5_string_type(), .half = kit_h5_half_type()};
    for (int i = 0; i < N_OPEN; i++) r.open[i].set = -1;
    r.at = r.open;
    r.piece = malloc(PIECE_BYTES);
    const kit_h5_answer first = {.fault = r.file < 0 || !r.piece ? KIT_H5_UNREADABLE : KIT_H5_FINE};
    send_all(&first, sizeof first);
    if (!first.fault) serve(&r);
    _exit(1);
}

int kit_h5_child_start(const dw_map *map, pid_t *pid, int *fd, dw_err *err) {
    int end[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, end))
        return dw_fail(err, "cannot make a socket for the process that reads: %s", strerror(errno));
    *pid = fork();
    if (!*pid) run(map, end[1]);
    const int why = errno;
    close(end[1]);
    *fd = end[0];
    if (*pid > 0) {
        fcntl(*fd, F_SETFD, FD_CLOEXEC);
        return 0;
    }
    close(*fd);
    return dw_fail(err, "cannot start the process that reads: %s", strerror(why));
}
