/* System calls that safe Rust cannot make: memory maps, file handles, locks over ranges. Each command
 * prints the result of each call, one a line, for the tests to compare. Exit code 2 is a mistake of the
 * test itself. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static void mistake(const char *what) {
    perror(what);
    exit(2);
}

static const char *named(int failed) { return failed ? strerrorname_np(errno) : "ok"; }

static char *read_all(const char *path, size_t *len) {
    struct stat st;
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fstat(fd, &st) < 0) mistake(path);
    char *bytes = malloc(st.st_size);
    size_t at = 0;
    while (at < (size_t)st.st_size) {
        ssize_t got = read(fd, bytes + at, st.st_size - at);
        if (got <= 0) mistake(path);
        at += got;
    }
    close(fd);
    *len = at;
    return bytes;
}

/* map FILE EXPECTED: maps FILE in each way, touches one page, waits for a line on stdin, and compares
 * everything with what EXPECTED held at the beginning. */
static int map(const char *path, const char *expected_path) {
    size_t len;
    char *expected = read_all(expected_path, &len);
    int fd = open(path, O_RDONLY);
    if (fd < 0) mistake(path);
    char *shared = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    printf("shared %s\n", named(shared == MAP_FAILED));
    char *private = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    printf("private %s\n", named(private == MAP_FAILED));
    char *writable = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    printf("shared-writable %s\n", named(writable == MAP_FAILED));
    if (shared == MAP_FAILED || private == MAP_FAILED) return 1;
    printf("protect %s\n", named(mprotect(shared, len, PROT_READ | PROT_WRITE) < 0));
    close(fd); /* a map outlives its descriptor */
    private[0] = (char)~expected[0];
    printf("written %s\n", private[0] != expected[0] && shared[0] == expected[0] ? "apart" : "through");
    fflush(stdout);
    if (getchar() == EOF) return 2;
    printf("shared-after %s\n", memcmp(shared, expected, len) == 0 ? "same" : "differs");
    printf("private-after %s\n", memcmp(private + 1, expected + 1, len - 1) == 0 ? "same" : "differs");
    fd = open(path, O_RDONLY);
    char *again = fd < 0 ? MAP_FAILED : mmap(NULL, len, PROT_READ, MAP_SHARED, fd, 0);
    if (again == MAP_FAILED) mistake("map again");
    printf("mapped-anew %s\n", memcmp(again, expected, len) == 0 ? "same" : "differs");
    return 0;
}

/* handle FILE: opens FILE by its handle, and then by a handle with an unknown inode number. */
static int handle(const char *path) {
    char room[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    struct file_handle *handle = (struct file_handle *)room;
    handle->handle_bytes = MAX_HANDLE_SZ;
    int mount_id, mount = open(path, O_RDONLY);
    if (mount < 0) mistake(path);
    printf("name %s\n", named(name_to_handle_at(AT_FDCWD, path, handle, &mount_id, 0) < 0));
    printf("known %s\n", named(open_by_handle_at(mount, handle, O_RDONLY) < 0));
    handle->f_handle[3] ^= 0x5a;
    printf("unknown %s\n", named(open_by_handle_at(mount, handle, O_RDONLY) < 0));
    return 0;
}

static void interrupted(int signal) { (void)signal; }

/* locks FILE: takes commands "set|wait|get r|w|u START LEN" from stdin and prints the result of each. A
 * signal USR1 interrupts a wait. The process id is printed first. */
static int locks(const char *path) {
    struct sigaction action = {.sa_handler = interrupted}; /* without SA_RESTART */
    if (sigaction(SIGUSR1, &action, NULL) < 0) mistake("sigaction");
    int fd = open(path, O_RDWR);
    if (fd < 0) mistake(path);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    char how[8], kind;
    long start, len;
    while (scanf("%7s %c %ld %ld", how, &kind, &start, &len) == 4) {
        struct flock lock = {.l_whence = SEEK_SET, .l_start = start, .l_len = len};
        lock.l_type = kind == 'r' ? F_RDLCK : kind == 'w' ? F_WRLCK : F_UNLCK;
        int command = *how == 's' ? F_SETLK : *how == 'w' ? F_SETLKW : F_GETLK;
        int failed = fcntl(fd, command, &lock) < 0;
        if (!failed && command == F_GETLK && lock.l_type != F_UNLCK)
            printf("%c %ld %ld by %d\n", lock.l_type == F_RDLCK ? 'r' : 'w', (long)lock.l_start,
                   (long)lock.l_len, (int)lock.l_pid);
        else
            printf("%s\n", named(failed));
        fflush(stdout);
    }
    return 0;
}

/* read FILE: prints the process id, reads a byte, and prints the result. A signal USR1 is handled, and no signal leaves
 * a core file. */
static int read_one(const char *path) {
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_CORE, &none) < 0) mistake("setrlimit");
    struct sigaction action = {.sa_handler = interrupted}; /* without SA_RESTART */
    if (sigaction(SIGUSR1, &action, NULL) < 0) mistake("sigaction");
    int fd = open(path, O_RDONLY);
    if (fd < 0) mistake(path);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    char byte;
    printf("%s\n", named(pread(fd, &byte, 1, 0) != 1));
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "locks") == 0) return locks(argv[2]);
    if (argc == 3 && strcmp(argv[1], "read") == 0) return read_one(argv[2]);
    if (argc == 4 && strcmp(argv[1], "map") == 0) return map(argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], "handle") == 0) return handle(argv[2]);
    fprintf(stderr, "usage: probe map FILE EXPECTED | handle FILE | locks FILE | read FILE\n");
    return 2;
}
