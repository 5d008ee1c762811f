/* A driver of GPUs where there is none. Its memory is the host's; work on a stream is done when the stream is waited for;
 * the process that listens at SOCKET gets PTX that is loaded, executes kernels of it, and is told the bytes of their buffers.
 * Misuse is an error: calls outside of a context, addresses that were never allocated, work left behind.
 *
 *   cc -shared -fPIC -DSOCKET='"…"' -DMAJOR=8 -DMINOR=0 -DGPUS=1 driver.c -o libdriver.so -lpthread */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  INVALID_PTX = 218,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILED = 719,
  UNKNOWN = 999,
  MOST = 4096
};

typedef struct {
  char name[200];
  uint32_t shape[3]; /* blocks, threads, shared bytes */
  uint32_t count;
  uint64_t bytes[32], addresses[32];
  uint32_t writes[32];
} Launch;

typedef struct Work {
  struct Work *next;
  void *to;
  const void *from;
  size_t bytes;
  Launch *launch;
} Work;

typedef struct {
  Work *first, **last;
} Stream;

typedef struct {
  char *ptx; /* null: machine code */
} Module;

typedef struct {
  char name[200];
} Function;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int channel = -1;
static int sticky; /* the error of work that failed: every later call has it */
static int users;
static struct {
  char *at;
  size_t bytes;
} blocks[MOST];
static int streams, modules;
static _Thread_local int depth;

static int put(const void *data, size_t bytes) {
  for (const char *at = data; bytes > 0;) {
    ssize_t done = send(channel, at, bytes, MSG_NOSIGNAL);
    if (done <= 0) return UNKNOWN;
    at += done, bytes -= (size_t)done;
  }
  return 0;
}

static int get(void *data, size_t bytes) {
  for (char *at = data; bytes > 0;) {
    ssize_t done = recv(channel, at, bytes, 0);
    if (done <= 0) return UNKNOWN;
    at += done, bytes -= (size_t)done;
  }
  return 0;
}

/* Begins a question: what it is about, and a text. */
static int ask(char what, const char *text) {
  if (channel < 0) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, SOCKET, sizeof address.sun_path - 1);
    channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(channel, (struct sockaddr *)&address, sizeof address) != 0) return UNKNOWN;
  }
  uint32_t len = (uint32_t)strlen(text);
  return put(&what, 1) || put(&len, 4) || put(text, len) ? UNKNOWN : 0;
}

static int answer(void) {
  int32_t code;
  return get(&code, 4) ? UNKNOWN : code;
}

/* Tells what happened; the answer is a code. */
static int tell(char what, const char *text) { return ask(what, text) ? UNKNOWN : answer(); }

static int known(uint64_t address, size_t bytes) {
  char *at = (char *)(uintptr_t)address;
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && at >= blocks[i].at && at + bytes <= blocks[i].at + blocks[i].bytes) return 1;
  return 0;
}

/* Every call but the first ones is made in a context, and fails once work has failed. */
#define ENTER()                              \
  if (depth <= 0) return INVALID_CONTEXT;    \
  pthread_mutex_lock(&lock);                 \
  int code = sticky

#define LEAVE()                  \
  pthread_mutex_unlock(&lock);   \
  return code

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : 0; }

int cuDeviceGetCount(int *count) {
  *count = GPUS;
  return 0;
}

int cuDeviceGet(int *device, int number) {
  *device = 7 + number;
  return number < GPUS ? 0 : INVALID_DEVICE;
}

int cuDeviceGetName(char *name, int room, int device) {
  snprintf(name, (size_t)room, "Imaginary %d", device - 7);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 75 ? MAJOR : MINOR;
  return device < 7 || (attribute != 75 && attribute != 76) ? INVALID_VALUE : 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  pthread_mutex_lock(&lock);
  users++;
  pthread_mutex_unlock(&lock);
  *context = &blocks;
  return device < 7 ? INVALID_DEVICE : 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  pthread_mutex_lock(&lock);
  if (--users == 0) {
    char text[64];
    int left = 0;
    for (int i = 0; i < MOST; i++) left += blocks[i].at != NULL;
    snprintf(text, sizeof text, "%d blocks, %d streams, %d modules left", left, streams, modules);
    tell('E', text);
    sticky = 0;
  }
  pthread_mutex_unlock(&lock);
  return device < 7 ? INVALID_DEVICE : 0;
}

int cuCtxPushCurrent_v2(void *context) {
  if (context != &blocks || users == 0) return INVALID_CONTEXT;
  depth++;
  return 0;
}

int cuCtxPopCurrent_v2(void **context) {
  *context = &blocks;
  return depth-- > 0 ? 0 : INVALID_CONTEXT;
}

int cuModuleLoadDataEx(void **out, const void *image, unsigned count, unsigned *options, void **values) {
  ENTER();
  int machine = memcmp(image, "\177ELF", 4) == 0;
  if (!code) code = tell('M', machine ? "cubin" : image);
  if (!code && !machine && !strstr(image, ".target sm_")) code = INVALID_PTX;
  if (code == INVALID_PTX && count == 2 && options[0] == 5 && options[1] == 6)
    snprintf(values[0], (size_t)values[1], "line 1: no PTX");
  if (!code) {
    Module *module = malloc(sizeof *module);
    module->ptx = machine ? NULL : strdup(image);
    modules++;
    *out = module;
  }
  LEAVE();
}

int cuModuleUnload(void *handle) {
  Module *module = handle;
  ENTER();
  free(module->ptx);
  free(module);
  modules--;
  LEAVE();
}

int cuModuleGetFunction(void **out, void *handle, const char *name) {
  static Function functions[MOST];
  static int count;
  Module *module = handle;
  char entry[256];
  ENTER();
  snprintf(entry, sizeof entry, ".entry %s(", name);
  if (module->ptx && !strstr(module->ptx, entry)) code = NOT_FOUND;
  if (!code) {
    Function *function = &functions[count++ % MOST];
    snprintf(function->name, sizeof function->name, "%s", name);
    *out = function;
  }
  LEAVE();
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
  ENTER();
  if (!function || attribute != 8 || value > 227 << 10) code = INVALID_VALUE;
  LEAVE();
}

int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  ENTER();
  int i = 0;
  while (i < MOST && blocks[i].at) i++;
  if (!code && bytes == 0) code = INVALID_VALUE;
  if (!code && i == MOST) code = OUT_OF_MEMORY;
  char text[32];
  snprintf(text, sizeof text, "%zu", bytes);
  if (!code) code = tell('A', text);
  if (!code) {
    blocks[i].at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    blocks[i].bytes = bytes;
    memset(blocks[i].at, 0xa5, bytes);
    *address = (uintptr_t)blocks[i].at;
  }
  LEAVE();
}

int cuMemFree_v2(uint64_t address) {
  ENTER();
  code = INVALID_VALUE;
  for (int i = 0; i < MOST; i++) {
    if (blocks[i].at && (uintptr_t)blocks[i].at == address) {
      free(blocks[i].at);
      blocks[i].at = NULL;
      code = 0;
    }
  }
  LEAVE();
}

static Work *add(Stream *stream) {
  Work *work = calloc(1, sizeof *work);
  *stream->last = work;
  stream->last = &work->next;
  return work;
}

static int copy(void *stream, void *to, const void *from, size_t bytes, int fits) {
  ENTER();
  if (!code && !(fits && bytes > 0)) code = INVALID_VALUE;
  if (!code) {
    Work *work = add(stream);
    work->to = to, work->from = from, work->bytes = bytes;
  }
  LEAVE();
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
  return copy(stream, (void *)(uintptr_t)to, from, bytes, known(to, bytes));
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
  return copy(stream, to, (void *)(uintptr_t)from, bytes, known(from, bytes));
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  int fits = known(from, bytes) && known(to, bytes);
  return copy(stream, (void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes, fits);
}

/* Matrices that the copy engine was told of since the last launch, which is given what was written of them. */
static unsigned encoded;
static const char ENCODED[] = "a matrix of the copy engine's";

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  char text[256];
  ENTER();
  /* f16, bf16, and f32 that is rounded to tf32. */
  unsigned element = type == 11 ? 4 : 2;
  int fits = rank >= 2 && rank <= 5 && (uintptr_t)map % 64 == 0 && (uintptr_t)address % 16 == 0 && box[0] * element == 128;
  fits = fits && (type == 6 || type == 9 || type == 11) && !interleave && swizzle == 3 && promotion == 3 && !fill;
  uint64_t last = fits ? extents[0] * element : 0;
  int end = snprintf(text, sizeof text, "type %d, %lu in boxes of %u", type, (unsigned long)extents[0], box[0]);
  for (unsigned i = 1; fits && i < rank; i++) {
    fits = extents[i] > 0 && steps[i] == 1 && strides[i - 1] % 16 == 0 && (i < 2 || strides[i - 1] >= strides[i - 2]);
    last += (extents[i] - 1) * strides[i - 1];
    end += snprintf(text + end, sizeof text - end, ", %lu %lu bytes apart by %u", (unsigned long)extents[i],
                    (unsigned long)strides[i - 1], box[i]);
  }
  if (!fits || steps[0] != 1) code = INVALID_VALUE;
  if (!code && !known((uintptr_t)address, last)) code = ILLEGAL_ADDRESS;
  if (!code) code = tell('T', text);
  if (!code) memcpy(map, ENCODED, sizeof ENCODED), encoded++;
  LEAVE();
}

int cuStreamCreate(void **out, unsigned flags) {
  ENTER();
  if (!code && flags != 1) code = INVALID_VALUE;
  if (!code) {
    Stream *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first;
    streams++;
    *out = stream;
  }
  LEAVE();
}

/* Executes a kernel on copies of its buffers, and writes what it changed: buffers may be parts of one tensor whose
 * elements alternate. */
static int execute(Launch *launch) {
  unsigned char *before[32] = {0};
  for (uint32_t i = 0; i < launch->count; i++)
    if (!known(launch->addresses[i], launch->bytes[i])) return ILLEGAL_ADDRESS;
  int code = ask('X', launch->name);
  for (uint32_t i = 0; i < launch->count; i++) {
    before[i] = malloc(launch->bytes[i] + 1);
    memcpy(before[i], (void *)(uintptr_t)launch->addresses[i], launch->bytes[i]);
    if (!code) code = put(before[i], launch->bytes[i]);
  }
  if (!code) code = answer();
  for (uint32_t i = 0; i < launch->count; i++) {
    if (!code && launch->writes[i]) {
      unsigned char *after = malloc(launch->bytes[i] + 1), *at = (void *)(uintptr_t)launch->addresses[i];
      code = get(after, launch->bytes[i]);
      for (uint64_t byte = 0; !code && byte < launch->bytes[i]; byte++)
        if (after[byte] != before[i][byte]) at[byte] = after[byte];
      free(after);
    }
    free(before[i]);
  }
  return code;
}

int cuStreamSynchronize(void *handle) {
  Stream *stream = handle;
  ENTER();
  while (stream->first) {
    Work *work = stream->first;
    if (!code && work->launch) code = sticky = execute(work->launch);
    if (!code && !work->launch) memcpy(work->to, work->from, work->bytes);
    stream->first = work->next;
    free(work->launch);
    free(work);
  }
  stream->last = &stream->first;
  LEAVE();
}

int cuStreamDestroy_v2(void *handle) {
  Stream *stream = handle;
  ENTER();
  if (stream->first) code = INVALID_VALUE;
  free(stream);
  streams--;
  LEAVE();
}

int cuLaunchKernel(void *handle, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  Function *function = handle;
  ENTER();
  if (!code && (x == 0 || y != 1 || z != 1 || ty != 1 || tz != 1 || extra)) code = INVALID_VALUE;
  Launch *launch = calloc(1, sizeof *launch);
  snprintf(launch->name, sizeof launch->name, "%s", function->name);
  uint32_t shape[3] = {x, threads, shared};
  memcpy(launch->shape, shape, sizeof shape);
  if (!code) code = ask('L', launch->name) || put(shape, sizeof shape) ? UNKNOWN : answer();
  if (!code && (get(&launch->count, 4) || launch->count > 32)) code = UNKNOWN;
  for (uint32_t i = 0; !code && i < launch->count; i++) {
    if (get(&launch->bytes[i], 8) || get(&launch->writes[i], 4)) code = UNKNOWN;
    launch->addresses[i] = *(uint64_t *)parameters[i];
  }
  for (uint32_t i = 0; !code && i < encoded; i++)
    if (memcmp(parameters[launch->count + i], ENCODED, sizeof ENCODED)) code = INVALID_VALUE;
  encoded = 0;
  if (!code) {
    add(stream)->launch = launch;
  } else {
    free(launch);
  }
  LEAVE();
}

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"},
    {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
};

static int lookup(int code, const char **out, int name) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    if (errors[i].code == code) {
      *out = name ? errors[i].name : errors[i].text;
      return 0;
    }
  }
  *out = NULL;
  return INVALID_VALUE;
}

int cuGetErrorString(int code, const char **out) { return lookup(code, out, 0); }
int cuGetErrorName(int code, const char **out) { return lookup(code, out, 1); }
