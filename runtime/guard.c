#define _GNU_SOURCE
/* Calls into wgpu-native that end the process where they fail, so that they only fail.
 *
 * wgpu-native answers an error inside submit, poll and the like (a driver says the device is lost)
 * with a Rust panic that nothing can catch, which ends in abort(). wgpu-core has returned by then
 * and holds no lock. A handler of SIGABRT that jumps back out of the call is what POSIX allows there;
 * where this thread is not in such a call, the handler that was there before has its turn.
 */
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

static _Thread_local sigjmp_buf place;
static _Thread_local volatile sig_atomic_t guarded;
static struct sigaction before;

/* Whether this thread called abort(). A signal from elsewhere may strike while wgpu holds a lock. */
static int own(const siginfo_t *info) {
#ifdef SI_TKILL
    if (info->si_code != SI_TKILL) return 0;
#endif
    return info->si_pid == 0 || info->si_pid == getpid();
}

static void on_abort(int number, siginfo_t *info, void *context) {
    if (guarded && own(info)) {
        guarded = 0;
        siglongjmp(place, 1);
    }
    /* Not ours: to the handler before, and where that one comes back here, to the default. */
    static volatile sig_atomic_t leaving;
    if (leaving++) {
        signal(SIGABRT, SIG_DFL);
    } else {
        sigaction(SIGABRT, &before, NULL);
    }
    (void)context;
    raise(number);
}

/* At each call, for others (Python's faulthandler) may have set theirs since. */
static void arm(void) {
    struct sigaction now;
    sigaction(SIGABRT, NULL, &now);
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_abort) return;
    before = now;
    struct sigaction mine = {0};
    mine.sa_sigaction = on_abort;
    mine.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigemptyset(&mine.sa_mask);
    sigaction(SIGABRT, &mine, NULL);
}

/* 1, and the submission's index, or 0 where the call gave up. */
int guarded_submit(void *function, void *queue, size_t count, void *commands, uint64_t *index) {
    arm();
    if (sigsetjmp(place, 0)) return 0;
    guarded = 1;
    *index = ((uint64_t(*)(void *, size_t, void *))function)(queue, count, commands);
    guarded = 0;
    return 1;
}

int guarded_poll(void *function, void *device, uint32_t wait, const void *index) {
    arm();
    if (sigsetjmp(place, 0)) return 0;
    guarded = 1;
    ((uint32_t(*)(void *, uint32_t, const void *))function)(device, wait, index);
    guarded = 0;
    return 1;
}

int guarded_range(void *function, void *buffer, size_t offset, size_t size, const void **range) {
    arm();
    if (sigsetjmp(place, 0)) return 0;
    guarded = 1;
    *range = ((const void *(*)(void *, size_t, size_t))function)(buffer, offset, size);
    guarded = 0;
    return 1;
}
