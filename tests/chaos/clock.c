/* Loaded before libc: the time of day is off by the seconds in the file that CLOCK_OFFSET_FILE names, read anew once a second. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static int (*true_clock)(clockid_t, struct timespec *);
static long offset;
static time_t looked;

static int now(struct timespec *found) {
    if (!true_clock) true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = true_clock(CLOCK_REALTIME, found);
    if (found->tv_sec != looked) {
        looked = found->tv_sec;
        const char *name = getenv("CLOCK_OFFSET_FILE");
        FILE *file = name ? fopen(name, "r") : NULL;
        long read = 0;
        if (file) {
            if (fscanf(file, "%ld", &read) == 1) offset = read;
            fclose(file);
        }
    }
    found->tv_sec += offset;
    return failed;
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) return now(found);
    if (!true_clock) true_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return true_clock(clock, found);
}

time_t time(time_t *told) {
    struct timespec found;
    now(&found);
    if (told) *told = found.tv_sec;
    return found.tv_sec;
}

int gettimeofday(struct timeval *told, void *zone) {
    struct timespec found;
    (void)zone;
    int failed = now(&found);
    told->tv_sec = found.tv_sec;
    told->tv_usec = found.tv_nsec / 1000;
    return failed;
}
