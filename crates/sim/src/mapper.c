// Reads and writes a file through shared mappings, on commands from standard input; see fsx.rs.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int fd = open(argv[1], O_RDWR);
    if (fd < 0) return fail("open");
    char command[8];
    unsigned long long start, len;
    while (scanf("%7s %llu %llu", command, &start, &len) == 3) {
        if (getchar() != '\n') return 2;
        unsigned long long page = start / 4096 * 4096;
        size_t size = start - page + len;
        char *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, page);
        if (map == MAP_FAILED) return fail("mmap");
        char *bytes = map + (start - page);
        if (strcmp(command, "read") == 0) {
            printf("ok\n");
            if (fwrite(bytes, 1, len, stdout) != len) return 2;
        } else {
            if (fread(bytes, 1, len, stdin) != len) return 2;
            // Only half of the writes are synced here; the kernel writes back the others later.
            if (start % 2 == 0 && msync(map, size, MS_SYNC) != 0) return fail("msync");
            printf("ok\n");
        }
        fflush(stdout);
        if (munmap(map, size) != 0) return fail("munmap");
    }
    return 0;
}
