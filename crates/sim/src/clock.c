// Shifts the wall clock of the process that loads this library by BULLA_TEST_CLOCK_S seconds; see clock.rs.
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *at) {
    long result = syscall(SYS_clock_gettime, clock, at);
    const char *shift = getenv("BULLA_TEST_CLOCK_S");
    if (result == 0 && clock == CLOCK_REALTIME && shift) at->tv_sec += atoll(shift);
    return (int)result;
}
