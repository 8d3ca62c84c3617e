/* A Vulkan driver that fails when it is told to: it stands in front of another one (the path in
 * FAULTY_DRIVER_REAL) and, once faulty_set is called, answers some calls with an error.
 *
 * Built and used by faulty.py. Declarations are written out: Vulkan's headers are not needed.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int32_t VkResult;
typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);

enum { OUT_OF_HOST_MEMORY = -1, OUT_OF_DEVICE_MEMORY = -2, DEVICE_LOST = -4 };
enum { SUBMIT = 1, WAIT = 2, ALLOCATE = 4 };

static int failing;
static int64_t budget = INT64_MAX; /* bytes that may still be allocated */

/* which: a sum of the enum above; bytes: what may still be allocated, for ALLOCATE. */
void faulty_set(int which, int64_t bytes) {
    failing = which;
    budget = bytes;
}

static Lookup real_instance, real_device;
static VkResult (*submit)(void *, uint32_t, const void *, uint64_t);
static VkResult (*submit2)(void *, uint32_t, const void *, uint64_t);
static VkResult (*wait_semaphores)(void *, const void *, uint64_t);
static VkResult (*semaphore_value)(void *, uint64_t, uint64_t *);
static VkResult (*wait_fences)(void *, uint32_t, const uint64_t *, uint32_t, uint64_t);
static VkResult (*fence_status)(void *, uint64_t);
static VkResult (*allocate)(void *, const void *, const void *, uint64_t *);

static VkResult my_submit(void *q, uint32_t n, const void *s, uint64_t f) {
    return failing & SUBMIT ? DEVICE_LOST : submit(q, n, s, f);
}
static VkResult my_submit2(void *q, uint32_t n, const void *s, uint64_t f) {
    return failing & SUBMIT ? DEVICE_LOST : submit2(q, n, s, f);
}
static VkResult my_wait_semaphores(void *d, const void *i, uint64_t t) {
    return failing & WAIT ? DEVICE_LOST : wait_semaphores(d, i, t);
}
static VkResult my_semaphore_value(void *d, uint64_t s, uint64_t *v) {
    return failing & WAIT ? DEVICE_LOST : semaphore_value(d, s, v);
}
static VkResult my_wait_fences(void *d, uint32_t n, const uint64_t *f, uint32_t a, uint64_t t) {
    return failing & WAIT ? DEVICE_LOST : wait_fences(d, n, f, a, t);
}
static VkResult my_fence_status(void *d, uint64_t f) {
    return failing & WAIT ? DEVICE_LOST : fence_status(d, f);
}
static VkResult my_allocate(void *d, const void *info, const void *a, uint64_t *memory) {
    /* VkMemoryAllocateInfo: sType, pNext, allocationSize. */
    uint64_t size = ((const uint64_t *)info)[2];
    if (failing & ALLOCATE) {
        if ((int64_t)size > budget) return OUT_OF_DEVICE_MEMORY;
        budget -= (int64_t)size;
    }
    return allocate(d, info, a, memory);
}

static const struct {
    const char *name;
    Function *real;
    Function mine;
} replaced[] = {
    {"vkQueueSubmit", (Function *)&submit, (Function)my_submit},
    {"vkQueueSubmit2", (Function *)&submit2, (Function)my_submit2},
    {"vkQueueSubmit2KHR", (Function *)&submit2, (Function)my_submit2},
    {"vkWaitSemaphores", (Function *)&wait_semaphores, (Function)my_wait_semaphores},
    {"vkWaitSemaphoresKHR", (Function *)&wait_semaphores, (Function)my_wait_semaphores},
    {"vkGetSemaphoreCounterValue", (Function *)&semaphore_value, (Function)my_semaphore_value},
    {"vkGetSemaphoreCounterValueKHR", (Function *)&semaphore_value, (Function)my_semaphore_value},
    {"vkWaitForFences", (Function *)&wait_fences, (Function)my_wait_fences},
    {"vkGetFenceStatus", (Function *)&fence_status, (Function)my_fence_status},
    {"vkAllocateMemory", (Function *)&allocate, (Function)my_allocate},
};

static Function replace(const char *name, Function found) {
    for (size_t i = 0; found && i < sizeof replaced / sizeof *replaced; i++)
        if (!strcmp(name, replaced[i].name)) {
            *replaced[i].real = found;
            return replaced[i].mine;
        }
    return found;
}

static Function my_device(void *device, const char *name) {
    return replace(name, real_device(device, name));
}

static void *driver(void) {
    static void *handle;
    if (!handle) handle = dlopen(getenv("FAULTY_DRIVER_REAL"), RTLD_NOW | RTLD_LOCAL);
    if (!handle) abort();
    return handle;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    if (!real_instance) real_instance = (Lookup)dlsym(driver(), "vk_icdGetInstanceProcAddr");
    Function found = real_instance(instance, name);
    if (found && !strcmp(name, "vkGetDeviceProcAddr")) {
        real_device = (Lookup)found;
        return (Function)my_device;
    }
    return replace(name, found);
}

VkResult vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    VkResult (*real)(uint32_t *) = (VkResult (*)(uint32_t *))dlsym(
        driver(), "vk_icdNegotiateLoaderICDInterfaceVersion");
    return real(version);
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    Lookup real = (Lookup)dlsym(driver(), "vk_icdGetPhysicalDeviceProcAddr");
    return real ? real(instance, name) : 0;
}
