/* A client as hard on a library as clients are: it loads and unloads it in turns, calls it from threads while
 * another shuts down, forks while it is initialised and calls it in both processes, and has structures that end
 * where its memory ends.
 * The argument is the library's path. It says nothing and ends with 0, or says what failed.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

typedef int (*plain)(void);
typedef int (*handle_of)(unsigned int, void **);
typedef int (*number_of)(void *, unsigned int *);

static plain init, shut;
static handle_of by_index;
static number_of power;

static void *load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    init = (plain)dlsym(library, "nvmlInit_v2");
    shut = (plain)dlsym(library, "nvmlShutdown");
    by_index = (handle_of)dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    power = (number_of)dlsym(library, "nvmlDeviceGetPowerUsage");
    return library;
}

static void must(const char *what, int right)
{
    if (!right) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static int reads(void)
{
    void *gpu = 0;
    unsigned int milliwatts = 0;
    return by_index(0, &gpu) == 0 && power(gpu, &milliwatts) == 0 && milliwatts > 0;
}

static void *reader(void *unused)
{
    int i;
    for (i = 0; i < 500; i++) {
        /* Uninitialised in the end: another thread shuts down. Anything but a crash will do. */
        reads();
    }
    return unused;
}

/* A structure of a version that nobody knows may be as short as its version: what lies behind it is not the
 * caller's. Here that is a page that must not be touched. */
static void short_structures(void *library)
{
    static const char *const names[] = {
        "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetPlatformInfo",
        "nvmlDeviceGetTemperatureV", "nvmlDeviceGetSramEccErrorStatus", "nvmlDeviceGetCurrentClockFreqs",
        "nvmlDeviceGetRunningProcessDetailList", "nvmlDeviceGetMarginTemperature", "nvmlDeviceGetPdi",
    };
    long page = sysconf(_SC_PAGESIZE);
    char *room = mmap(0, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned int *last = (unsigned int *)(room + page) - 1;
    void *gpu = 0;
    unsigned int i;
    must("pages", room != MAP_FAILED && mprotect(room + page, page, PROT_NONE) == 0);
    must("a handle", by_index(0, &gpu) == 0);
    for (i = 0; i < sizeof names / sizeof *names; i++) {
        number_of call = (number_of)dlsym(library, names[i]);
        *last = 0x7F000004;
        must(names[i], call && call(gpu, last) == 25);
    }
    munmap(room, 2 * page);
}

static int mapped(const char *path)
{
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, path) != 0;
    if (maps)
        fclose(maps);
    return found;
}

int main(int argc, char **argv)
{
    pthread_t threads[8];
    int i, status = 0;
    pid_t child;
    void *library;
    must("an argument", argc == 2);
    for (i = 0; i < 40; i++) {
        library = load(argv[1]);
        must("init", init() == 0);
        must("a reading", reads());
        must("shutdown", shut() == 0);
        must("a second shutdown is refused", shut() == 1);
        must("dlclose", dlclose(library) == 0);
        must("no mapping is left", !mapped(argv[1]));
    }
    library = load(argv[1]);
    must("init", init() == 0);
    short_structures(library);
    for (i = 0; i < 8; i++)
        must("a thread", pthread_create(&threads[i], 0, reader, 0) == 0);
    for (i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    for (i = 0; i < 8; i++)
        must("a thread", pthread_create(&threads[i], 0, reader, 0) == 0);
    must("shutdown beside readers", shut() == 0);
    for (i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    must("init again", init() == 0);
    child = fork();
    if (child == 0)
        _exit(reads() && shut() == 0 && init() == 0 && reads() ? 0 : 1);
    must("the child ends", waitpid(child, &status, 0) == child);
    must("the child reads", WIFEXITED(status) && WEXITSTATUS(status) == 0);
    must("the parent still reads", reads());
    must("shutdown", shut() == 0);
    must("dlclose", dlclose(library) == 0);
    must("no mapping is left", !mapped(argv[1]));
    return 0;
}
