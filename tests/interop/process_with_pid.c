/* Runs a process under a given pid that only sleeps: the simulated driver lists pids that its scenario names in advance.
 *
 *   process-with-pid PID SECONDS
 *
 * Ends with that process, and ends it on SIGTERM. Needs CAP_CHECKPOINT_RESTORE. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t child;

static void end(int signal) {
    kill(child, SIGKILL);
    _exit(128 + signal);
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: process-with-pid PID SECONDS\n");
        return 2;
    }
    pid_t pid = atoi(arguments[1]);
    unsigned seconds = atoi(arguments[2]);
    struct clone_args clone = {.exit_signal = SIGCHLD, .set_tid = (uintptr_t)&pid, .set_tid_size = 1};
    /* Another process may have the pid for a moment. */
    for (int attempt = 0; attempt < 100; attempt++) {
        child = syscall(SYS_clone3, &clone, sizeof clone);
        if (child >= 0 || errno != EEXIST) break;
        usleep(100000);
    }
    if (child < 0) {
        fprintf(stderr, "process-with-pid: pid %d: %s\n", pid, strerror(errno));
        return 1;
    }
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep(seconds);
        _exit(0);
    }
    signal(SIGTERM, end);
    signal(SIGINT, end);
    waitpid(child, NULL, 0);
    return 0;
}
