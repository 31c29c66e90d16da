/* The clocks of a host that somebody sets, or suspends: loaded with LD_PRELOAD, steered by a file of 16 bytes.
 *
 * STEPPED_CLOCK names the file: how far the wall clock and the monotonic one are from the kernel's, in ns. What the
 * kernel says by the wall clock (receive stamps) is moved alike. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { WALL, MONOTONIC };

static int64_t step_ns(int which) {
    static volatile int64_t *steps;
    if (steps == NULL) {
        const char *path = getenv("STEPPED_CLOCK");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (file < 0) return 0;
        void *mapped = mmap(NULL, 2 * sizeof *steps, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        if (mapped == MAP_FAILED) return 0;
        steps = mapped;
    }
    return steps[which];
}

static void move(struct timespec *at, int which) {
    int64_t ns = at->tv_nsec + step_ns(which);
    at->tv_sec += ns / 1000000000;
    at->tv_nsec = ns % 1000000000;
    if (at->tv_nsec < 0) {
        at->tv_nsec += 1000000000;
        at->tv_sec -= 1;
    }
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, at);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) move(at, WALL);
    if (code == 0 && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE)) move(at, MONOTONIC);
    return code;
}

time_t time(time_t *out) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    if (out) *out = at.tv_sec;
    return at.tv_sec;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

ssize_t recvmsg(int socket, struct msghdr *message, int flags) {
    static ssize_t (*real)(int, struct msghdr *, int);
    if (real == NULL) real = dlsym(RTLD_NEXT, "recvmsg");
    ssize_t got = real(socket, message, flags);
    if (got >= 0) {
        for (struct cmsghdr *one = CMSG_FIRSTHDR(message); one; one = CMSG_NXTHDR(message, one)) {
            if (one->cmsg_level == SOL_SOCKET && one->cmsg_type == SCM_TIMESTAMPNS) {
                struct timespec at;
                memcpy(&at, CMSG_DATA(one), sizeof at);
                move(&at, WALL);
                memcpy(CMSG_DATA(one), &at, sizeof at);
            }
        }
    }
    return got;
}
