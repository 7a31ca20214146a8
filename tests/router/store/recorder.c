/* Preloaded into a process, notes in order what it does to the files of a folder: RECORDED_FOLDER, into RECORDED_TO.

   A note: kind (1 byte) | descriptor (4) | number (8) | bytes that follow (4) | these. A write is noted before it
   returns, a sync when it begins and when it has ended: it holds for what was noted before its beginning. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define FILES 65536
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int to = -1;
static const char *folder;
static char ours[FILES];

__attribute__((constructor)) static void begin(void) {
    folder = getenv("RECORDED_FOLDER");
    to = REAL(open)(getenv("RECORDED_TO"), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

static void note(char kind, int file, uint64_t number, const void *data, uint32_t length) {
    struct __attribute__((packed)) { char kind; int32_t file; uint64_t number; uint32_t length; } head = {kind, file, number, length};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, length}};
    if (REAL(writev)(to, parts, 2) != (ssize_t)(sizeof head + length)) abort();
}

static int inside(const char *path) { return to >= 0 && !strncmp(path, folder, strlen(folder)); }
static int known(int file) { return to >= 0 && file >= 0 && file < FILES && ours[file]; }
static void note_path(char kind, int file, uint64_t number, const char *path) { note(kind, file, number, path, strlen(path)); }

static int opened(int directory, const char *path, int flags, mode_t mode) {
    int there = inside(path) && !access(path, F_OK);
    int file = REAL(openat)(directory, path, flags, mode);
    if (file >= 0 && file < FILES && (ours[file] = inside(path))) {
        note_path('o', file, !there, path);
        if (there && flags & O_TRUNC) note('t', file, 0, 0, 0);
    }
    return file;
}

#define MODE mode_t mode = 0; if (flags & O_CREAT) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
int openat(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int openat64(int directory, const char *path, int flags, ...) { MODE return opened(directory, path, flags, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }

int close(int file) {
    if (known(file)) { note('c', file, 0, 0, 0); ours[file] = 0; }
    return REAL(close)(file);
}

ssize_t pwrite64(int file, const void *data, size_t length, off64_t at) {
    ssize_t done = REAL(pwrite64)(file, data, length, at);
    if (done > 0 && known(file)) note('w', file, at, data, done);
    return done;
}
ssize_t pwrite(int file, const void *data, size_t length, off_t at) { return pwrite64(file, data, length, at); }

ssize_t write(int file, const void *data, size_t length) {
    ssize_t done = REAL(write)(file, data, length);
    if (done > 0 && known(file)) note('w', file, lseek(file, 0, SEEK_CUR) - done, data, done);
    return done;
}

int ftruncate64(int file, off64_t length) {
    int failed = REAL(ftruncate64)(file, length);
    if (!failed && known(file)) note('t', file, length, 0, 0);
    return failed;
}
int ftruncate(int file, off_t length) { return ftruncate64(file, length); }

int posix_fallocate64(int file, off64_t at, off64_t length) {
    int failed = REAL(posix_fallocate64)(file, at, length);
    if (!failed && known(file)) note('a', file, at + length, 0, 0);
    return failed;
}
int posix_fallocate(int file, off_t at, off_t length) { return posix_fallocate64(file, at, length); }

#define SYNC(name) \
    int name(int file) { \
        int ours_now = known(file); \
        if (ours_now) note('s', file, 0, 0, 0); \
        int failed = REAL(name)(file); \
        if (!failed && ours_now) note('S', file, 0, 0, 0); \
        return failed; \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int failed = REAL(unlink)(path);
    if (!failed && inside(path)) note_path('u', -1, 0, path);
    return failed;
}

int mkdir(const char *path, mode_t mode) {
    int failed = REAL(mkdir)(path, mode);
    if (!failed && inside(path)) note_path('m', -1, 0, path);
    return failed;
}

/* Not to be met: whoever comes to use it extends this. */
int rename(const char *before, const char *after) {
    if (inside(before) || inside(after)) abort();
    return REAL(rename)(before, after);
}
