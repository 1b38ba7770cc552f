/* Preloaded into a client: its wall clock is off by as many nanoseconds as the file CHAOS_CLOCK says.
 *
 * The other clocks are left alone, as they are when somebody sets the time of a machine. Whoever
 * waits until a time of day waits by the changed clock too: the kernel knows only the true one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define TIMES_OF_DAY 1000000000L /* Seconds: 2001. No clock since boot says that. */

static const volatile int64_t *off_ns;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(NULL, sizeof *off_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (page != MAP_FAILED) off_ns = page;
}

static struct timespec plus(struct timespec at, int64_t ns) {
    int64_t nsec = at.tv_nsec + ns % SECOND;
    at.tv_sec += ns / SECOND;
    if (nsec < 0) nsec += SECOND, at.tv_sec--;
    if (nsec >= SECOND) nsec -= SECOND, at.tv_sec++;
    at.tv_nsec = nsec;
    return at;
}

static struct timespec until(const struct timespec *at) {
    int64_t ns = off_ns && at->tv_sec > TIMES_OF_DAY ? *off_ns : 0;
    return plus(*at, -ns);
}

/* The default version of a symbol that exists in two: dlsym gives the oldest. */
static void *real(const char *name) {
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    static int (*its)(clockid_t, struct timespec *);
    if (!its) its = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = its ? its(clock, at) : (int)syscall(SYS_clock_gettime, clock, at);
    if (!code && off_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *at = plus(*at, *off_ns);
    return code;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

int timespec_get(struct timespec *at, int base) {
    if (base != TIME_UTC) return 0;
    clock_gettime(CLOCK_REALTIME, at);
    return base;
}

int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict at) {
    static int (*its)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    struct timespec end = until(at);
    if (!its) *(void **)&its = real("pthread_cond_timedwait");
    return its(condition, mutex, &end);
}

/* C11's, which librdkafka uses: they do not come by the functions above. */
int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict mutex,
                  const struct timespec *restrict at) {
    static int (*its)(cnd_t *, mtx_t *, const struct timespec *);
    struct timespec end = until(at);
    if (!its) *(void **)&its = dlsym(RTLD_NEXT, "cnd_timedwait");
    return its(condition, mutex, &end);
}

int mtx_timedlock(mtx_t *restrict mutex, const struct timespec *restrict at) {
    static int (*its)(mtx_t *, const struct timespec *);
    struct timespec end = until(at);
    if (!its) *(void **)&its = dlsym(RTLD_NEXT, "mtx_timedlock");
    return its(mutex, &end);
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict at) {
    static int (*its)(pthread_mutex_t *, const struct timespec *);
    struct timespec end = until(at);
    if (!its) *(void **)&its = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    return its(mutex, &end);
}

int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict at) {
    static int (*its)(sem_t *, const struct timespec *);
    struct timespec end = until(at);
    if (!its) *(void **)&its = dlsym(RTLD_NEXT, "sem_timedwait");
    return its(semaphore, &end);
}
