/* Makes the storage of one process fail while a file of a certain name exists in the directory
 * that STORAGE_FAULTS names:
 *
 *   full   there is no room: no file of a data directory can become longer than its blocks
 *   write  writes to the journal fail with EIO
 *   sync   the next sync of the journal fails with EIO, and those after it succeed
 */
#define _GNU_SOURCE
#define _LARGEFILE64_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static int armed(const char *name, char *trigger, size_t size) {
    const char *directory = getenv("STORAGE_FAULTS");
    if (!directory) return 0;
    snprintf(trigger, size, "%s/%s", directory, name);
    return access(trigger, F_OK) == 0;
}

static const char *name_of(int fd) {
    static __thread char path[4096];
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return path;
}

/* Whether a write needs a block that the file does not have. */
static int grows(int fd, off64_t at, size_t length) {
    struct stat64 known;
    if (fstat64(fd, &known) || !S_ISREG(known.st_mode)) return 0;
    off64_t room = (known.st_size + 4095) / 4096 * 4096;
    return at + (off64_t)length > room;
}

static int refuses(int fd, off64_t at, size_t length) {
    char trigger[4096];
    if (armed("full", trigger, sizeof trigger) && strstr(name_of(fd), "/data") &&
        grows(fd, at, length)) {
        errno = ENOSPC;
        return 1;
    }
    if (armed("write", trigger, sizeof trigger) && strstr(name_of(fd), "/journal/")) {
        errno = EIO;
        return 1;
    }
    return 0;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    if (!real) real = dlsym(RTLD_NEXT, "pwrite64");
    return refuses(fd, offset, length) ? -1 : real(fd, bytes, length, offset);
}

ssize_t write(int fd, const void *bytes, size_t length) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    off64_t at = lseek64(fd, 0, SEEK_CUR);
    return refuses(fd, at, length) ? -1 : real(fd, bytes, length);
}

int fdatasync(int fd) {
    static int (*real)(int);
    char trigger[4096];
    if (!real) real = dlsym(RTLD_NEXT, "fdatasync");
    if (armed("sync", trigger, sizeof trigger) && strstr(name_of(fd), ".segment")) {
        unlink(trigger);
        errno = EIO;
        return -1;
    }
    return real(fd);
}
