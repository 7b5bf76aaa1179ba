/* A stand-in for NVIDIA's libnvidia-ml.so.1: what pynvml asks for, answered from one table of machines.
 *
 * STAND_IN_NVML   the machine, looked up when a session starts
 * STAND_IN_PID    a process that each GPU shows
 * STAND_IN_UNTIL  a file whose appearance ends the hang of "hanging"; without it that never ends
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9, FUNCTION_NOT_FOUND = 13, GPU_IS_LOST = 15, RESET_REQUIRED = 16, MISMATCH = 18,
    VERSION_MISMATCH = 25, UNKNOWN = 999
};

#define MIB (1ULL << 20)
#define GIB (1ULL << 30)
#define NOT_AVAILABLE (~0ULL)

struct card {
    const char *name;
    int major, minor;
    unsigned long long total, used, reserved, of_process; /* bytes; total 0: no memory query is supported */
    unsigned busy, celsius, milliwatts, limit_milliwatts, mhz, max_mhz; /* limit 0: not supported */
    unsigned long long reasons;
    int mig; /* -1: not supported */
    int failing; /* what every query of this GPU answers, if not SUCCESS */
};

struct machine {
    const char *name;
    int failing; /* what starting a session answers */
    const char *driver;
    int cuda;
    int old, hangs;
    unsigned count;
    struct card cards[2];
};

#define H200(used, busy) \
    {"NVIDIA H200", 9, 0, 143771 * MIB, used, 600 * MIB, 58 * GIB, \
        busy, 44, 310250, 700000, 1785, 1980, 0x4, 0, SUCCESS}

static const struct machine MACHINES[] = {
    {"gb10", SUCCESS, "580.95.05", 13000, 0, 0, 1,
        {{"NVIDIA GB10", 12, 1, 0, 0, 0, 21 * GIB, 96, 62, 38400, 0, 2405, 3003, 0x0, -1, SUCCESS}}},
    {"laptop", SUCCESS, "581.42", 13000, 0, 0, 1,
        {{"NVIDIA GeForce RTX 5090 Laptop GPU", 12, 0, 24463 * MIB, 3 * GIB, 400 * MIB, 2 * GIB,
            71, 83, 94600, 95000, 1552, 3090, 0x4 | 0x8 | 0x40, -1, SUCCESS}}},
    {"desktop", SUCCESS, "580.95.05", 13000, 0, 0, 1,
        {{"NVIDIA GeForce RTX 5090", 12, 0, 32607 * MIB, 1 * GIB, 500 * MIB, NOT_AVAILABLE,
            0, 33, 21500, 575000, 180, 3090, 0x1, -1, SUCCESS}}},
    {"h100", SUCCESS, "570.172.08", 12080, 0, 0, 1,
        {{"NVIDIA H100 80GB HBM3", 9, 0, 81559 * MIB, 40 * GIB, 600 * MIB, 39 * GIB,
            100, 58, 512000, 700000, 1980, 1980, 0x0, 1, SUCCESS}}},
    {"two-h200", SUCCESS, "580.159.03", 13000, 0, 0, 2, {H200(60 * GIB, 35), H200(1 * GIB, 0)}},
    {"old", SUCCESS, "470.256.02", 11040, 1, 0, 1,
        {{"NVIDIA A100-SXM4-40GB", 8, 0, 40536 * MIB, 2 * GIB, 0, 1 * GIB,
            0, 30, 52000, 400000, 210, 1410, 0x1, 0, SUCCESS}}},
    {"failing", DRIVER_NOT_LOADED},
    {"unknown", UNKNOWN},
    {"mismatch", MISMATCH},
    {"no-gpu", SUCCESS, "580.95.05", 13000},
    {"lost", SUCCESS, "580.159.03", 13000, 0, 0, 2, {H200(60 * GIB, 35), {.failing = GPU_IS_LOST}}},
    {"reset", SUCCESS, "580.159.03", 13000, 0, 0, 2, {H200(60 * GIB, 35), {.failing = RESET_REQUIRED}}},
    {"hanging", SUCCESS, "580.159.03", 13000, 0, 1, 1, {H200(60 * GIB, 35)}},
};

static const struct machine *machine;

/* Every query of a GPU begins with this. */
#define CHECK(card) \
    if (!machine) return UNINITIALIZED; \
    if ((card)->failing) return (card)->failing;

static int copy(char *to, unsigned room, const char *text) {
    return snprintf(to, room, "%s", text) < (int)room ? SUCCESS : INSUFFICIENT_SIZE;
}

int nvmlInitWithFlags(unsigned flags) {
    const char *name = getenv("STAND_IN_NVML");
    (void)flags;
    for (unsigned i = 0; name && i < sizeof MACHINES / sizeof *MACHINES; i++)
        if (!strcmp(name, MACHINES[i].name)) {
            if (!MACHINES[i].failing) machine = &MACHINES[i];
            return MACHINES[i].failing;
        }
    return INVALID_ARGUMENT;
}

int nvmlShutdown(void) {
    machine = NULL;
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    return code == UNKNOWN ? "Unknown Error" : "Some Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned room) {
    return machine ? copy(version, room, machine->driver) : UNINITIALIZED;
}

int nvmlSystemGetCudaDriverVersion(int *version) {
    if (!machine) return UNINITIALIZED;
    *version = machine->cuda;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!machine) return UNINITIALIZED;
    *count = machine->count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, const struct card **card) {
    if (!machine) return UNINITIALIZED;
    if (index >= machine->count) return INVALID_ARGUMENT;
    *card = &machine->cards[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, const struct card **card) {
    unsigned index = (unsigned)(uuid[4] - 'a'); /* as nvmlDeviceGetUUID makes them */
    return nvmlDeviceGetHandleByIndex_v2(index, card);
}

int nvmlDeviceGetName(const struct card *card, char *name, unsigned room) {
    CHECK(card)
    return copy(name, room, card->name);
}

int nvmlDeviceGetUUID(const struct card *card, char *uuid, unsigned room) {
    char text[64];
    CHECK(card)
    snprintf(text, sizeof text, "GPU-%c0000000-0000-4000-8000-000000000000", "ab"[card - machine->cards]);
    return copy(uuid, room, text);
}

int nvmlDeviceGetCudaComputeCapability(const struct card *card, int *major, int *minor) {
    CHECK(card)
    *major = card->major;
    *minor = card->minor;
    return SUCCESS;
}

/* The first version counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(const struct card *card, unsigned long long memory[3]) {
    CHECK(card)
    if (!card->total) return NOT_SUPPORTED;
    memory[0] = card->total;
    memory[2] = card->used + card->reserved;
    memory[1] = memory[0] - memory[2];
    return SUCCESS;
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(const struct card *card, struct memory_v2 *memory) {
    CHECK(card)
    if (machine->old) return FUNCTION_NOT_FOUND;
    if (memory->version != (sizeof *memory | 2 << 24)) return VERSION_MISMATCH;
    if (!card->total) return NOT_SUPPORTED;
    memory->total = card->total;
    memory->reserved = card->reserved;
    memory->used = card->used;
    memory->free = card->total - card->used - card->reserved;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(const struct card *card, unsigned sensor, unsigned *celsius) {
    CHECK(card)
    *celsius = card->celsius;
    return sensor ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetPowerUsage(const struct card *card, unsigned *milliwatts) {
    CHECK(card)
    *milliwatts = card->milliwatts;
    return SUCCESS;
}

/* As if it had drawn that much for 1000 seconds. */
int nvmlDeviceGetTotalEnergyConsumption(const struct card *card, unsigned long long *millijoules) {
    CHECK(card)
    *millijoules = 1000ULL * card->milliwatts;
    return card->limit_milliwatts ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetEnforcedPowerLimit(const struct card *card, unsigned *milliwatts) {
    CHECK(card)
    *milliwatts = card->limit_milliwatts;
    return card->limit_milliwatts ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetUtilizationRates(const struct card *card, unsigned rates[2]) {
    const char *until = getenv("STAND_IN_UNTIL");
    CHECK(card)
    while (machine->hangs && !(until && access(until, F_OK) == 0)) usleep(10000);
    rates[0] = card->busy;
    rates[1] = 0;
    return SUCCESS;
}

/* Clock 1 is that of the SMs. */
int nvmlDeviceGetClockInfo(const struct card *card, unsigned clock, unsigned *mhz) {
    CHECK(card)
    *mhz = card->mhz;
    return clock == 1 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetMaxClockInfo(const struct card *card, unsigned clock, unsigned *mhz) {
    CHECK(card)
    *mhz = card->max_mhz;
    return clock == 1 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetCurrentClocksEventReasons(const struct card *card, unsigned long long *reasons) {
    CHECK(card)
    *reasons = card->reasons;
    return machine->old ? FUNCTION_NOT_FOUND : SUCCESS;
}

int nvmlDeviceGetMigMode(const struct card *card, unsigned *current, unsigned *pending) {
    CHECK(card)
    if (card->mig < 0) return NOT_SUPPORTED;
    *current = *pending = card->mig;
    return SUCCESS;
}

struct process {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

int nvmlDeviceGetComputeRunningProcesses_v3(const struct card *card, unsigned *count, struct process *processes) {
    const char *pid = getenv("STAND_IN_PID");
    unsigned room = *count;
    CHECK(card)
    if (machine->old) return FUNCTION_NOT_FOUND;
    *count = pid ? 1 : 0;
    if (room < *count) return INSUFFICIENT_SIZE;
    if (pid) processes[0] = (struct process){(unsigned)atoi(pid), card->of_process, ~0u, ~0u};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(const struct card *card, unsigned *count, struct process *processes) {
    (void)processes;
    CHECK(card)
    *count = 0;
    return machine->old ? FUNCTION_NOT_FOUND : SUCCESS;
}
