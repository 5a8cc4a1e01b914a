/* Reads every GPU through the C interface of NVML: over the simulated library or a real one.
 *
 *   cc -Wall reader.c -o reader node/libnvidia-ml.so.1
 *   LD_LIBRARY_PATH=node ./reader
 *
 * With a CUDA toolkit include <nvml.h> in place of the declarations below.
 */
#include <stdio.h>

typedef struct nvmlDevice_st *nvmlDevice_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int result);
int nvmlSystemGetDriverVersion(char *version, unsigned int length);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device);
int nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory);
int nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization);
int nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts);
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos);

static void tell(const char *what, int result)
{
    fprintf(stderr, "%s: %s\n", what, nvmlErrorString(result));
}

static int read_gpu(unsigned int index)
{
    nvmlDevice_t device;
    char name[96] = "";
    nvmlMemory_t memory = {0};
    nvmlUtilization_t busy = {0};
    nvmlProcessInfo_t processes[64];
    unsigned int milliwatts = 0, count = 64, i;
    int result = nvmlDeviceGetHandleByIndex_v2(index, &device);
    if (result == 0)
        result = nvmlDeviceGetName(device, name, sizeof name);
    if (result == 0)
        result = nvmlDeviceGetMemoryInfo(device, &memory);
    if (result == 0)
        result = nvmlDeviceGetPowerUsage(device, &milliwatts);
    if (result != 0) {
        tell("GPU", result);
        return 1;
    }
    printf("%u %s: %llu MiB used, %u W", index, name, memory.used >> 20, milliwatts / 1000);
    /* A GPU in MIG mode has no utilization: that is an answer, not a failure. */
    if (nvmlDeviceGetUtilizationRates(device, &busy) == 0)
        printf(", %u %% busy", busy.gpu);
    printf("\n");
    if (nvmlDeviceGetComputeRunningProcesses_v3(device, &count, processes) == 0)
        for (i = 0; i < count; i++)
            printf("  pid %u: %llu MiB\n", processes[i].pid, processes[i].usedGpuMemory >> 20);
    return 0;
}

int main(void)
{
    char driver[80] = "";
    unsigned int count = 0, index;
    int failed = 0, result = nvmlInit_v2();
    if (result != 0) {
        tell("nvmlInit", result);
        return 1;
    }
    if (nvmlSystemGetDriverVersion(driver, sizeof driver) == 0 && nvmlDeviceGetCount_v2(&count) == 0)
        printf("driver %s, %u GPUs\n", driver, count);
    for (index = 0; index < count; index++)
        failed += read_gpu(index);
    nvmlShutdown();
    return failed > 0;
}
