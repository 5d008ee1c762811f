/* CUDA's driver and two GPUs where there are none, as the runtime of compiled models in this process calls it. Memory is the host's. One thread does the
 * work of all streams, in the order of each, waiting for events; kernels are executed by functions that the process has given, by their
 * names or, if it gave one for that, by their PTX.
 * The variable IMAGINARY_FAULT says what goes wrong: absent, busy, old, memory (blocks above 64 KiB), or, in kernels whose names
 * contain a word, wrong:WORD (a bit of the last buffer), illegal:WORD, hang:WORD or crash:WORD.
 * Misuse is an error: calls outside of a context, addresses that were never allocated or are another GPU's, what is left when the context goes.
 *
 *   cc -shared -fPIC -DMAJOR=8 -DMINOR=0 cuda.c cublaslt.c cudnn.c nccl.c -o libcuda.so -lpthread -lm */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda.h"

enum {
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  DEVICE_UNAVAILABLE = 46,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  NOT_READY = 600,
  PEER_ACCESS_ALREADY_ENABLED = 704,
  ILLEGAL_ADDRESS = 700,
  LAUNCH_FAILED = 719,
  MOST = 4096,
  GPUS = 2,
  FIRST_GPU = 7 /* the number of the first one's handle */
};

typedef struct Event {
  struct Stream *stream;
  uint64_t at; /* passed when the stream has done so much */
} Event;

/* What a stream does: a function of a copy of some bytes, or waiting. */
typedef struct Work {
  struct Work *next;
  int (*run)(void *);
  Event awaits;
  size_t bytes;
  _Alignas(16) char argument[];
} Work;

typedef struct Stream {
  struct Stream *next;
  Work *first, **last;
  uint64_t asked, done;
  int gpu;
  Work *recorded, **recorded_last;
  int records;
} Stream;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Stream *streams;
static int sticky, left, started, held;
static struct {
  int users, peers[GPUS];
} contexts[GPUS];
/* The GPU whose context the thread has entered, counted from 1. */
static _Thread_local int entered;
static struct {
  char *at;
  size_t bytes;
  int gpu;
} blocks[MOST];
static int (*arguments_of)(const char *);
static int (*execute)(const char *, void **);
/* With the numbers of blocks, threads and bytes of shared memory, and the bytes that each argument may have. */
static int (*execute_ptx)(const char *, const char *, const unsigned *, void **, const size_t *, int);

void imaginary_kernels(int (*arguments)(const char *), int (*run)(const char *, void **)) {
  arguments_of = arguments, execute = run;
}

void imaginary_ptx(int (*run)(const char *, const char *, const unsigned *, void **, const size_t *, int)) {
  execute_ptx = run;
}

/* While the device is held, it begins nothing. */
int imaginary_hold(int hold) {
  pthread_mutex_lock(&lock);
  held = hold;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
  return hold;
}

int imaginary_owner(const void *address, size_t bytes) {
  const char *at = address;
  int gpu = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && at >= blocks[i].at && at + bytes <= blocks[i].at + blocks[i].bytes) gpu = blocks[i].gpu;
  pthread_mutex_unlock(&lock);
  return gpu;
}

int imaginary_known(const void *address, size_t bytes) { return entered && imaginary_owner(address, bytes) == entered; }

static int passed(Event event) { return !event.stream || event.stream->done >= event.at; }

static void *work(void *nothing) {
  pthread_mutex_lock(&lock);
  for (;;) {
    Stream *stream = held ? NULL : streams;
    while (stream && !(stream->first && passed(stream->first->awaits))) stream = stream->next;
    if (!stream) {
      pthread_cond_wait(&changed, &lock);
      continue;
    }
    Work *now = stream->first;
    if (!(stream->first = now->next)) stream->last = &stream->first;
    int failed = sticky;
    pthread_mutex_unlock(&lock);
    /* What the host is to be told is told also after a failure. */
    int code = now->run && (!failed || now->bytes == 0) ? now->run(now->argument) : 0;
    free(now);
    pthread_mutex_lock(&lock);
    if (code) sticky = code;
    stream->done++;
    pthread_cond_broadcast(&changed);
  }
  return nothing;
}

static Work *made(int (*run)(void *), const void *argument, size_t bytes) {
  Work *work = calloc(1, sizeof *work + (bytes ? bytes : 16));
  work->run = run, work->bytes = bytes;
  memcpy(work->argument, argument, bytes ? bytes : 16);
  return work;
}

/* The lock is held. */
static int push(Stream *stream, Work *work) {
  if (stream->records) {
    *stream->recorded_last = work, stream->recorded_last = &work->next;
    return 0;
  }
  *stream->last = work, stream->last = &work->next;
  stream->asked++;
  pthread_cond_broadcast(&changed);
  return 0;
}

int imaginary_enqueue(void *stream, int (*run)(void *), const void *argument, size_t bytes) {
  if (!entered || !stream || ((Stream *)stream)->gpu != entered) return INVALID_CONTEXT;
  pthread_mutex_lock(&lock);
  int code = sticky ? sticky : push(stream, made(run, argument, bytes));
  pthread_mutex_unlock(&lock);
  return code;
}

int imaginary_entered(void) { return entered; }

int imaginary_gpu(void *stream) { return stream ? ((Stream *)stream)->gpu : 0; }

int imaginary_enter(int gpu) {
  int before = entered;
  entered = gpu;
  return before;
}

void imaginary_follow(void *stream, void *other) {
  pthread_mutex_lock(&lock);
  Work *work = made(NULL, "", 1);
  work->awaits = (Event){other, ((Stream *)other)->asked};
  push(stream, work);
  pthread_mutex_unlock(&lock);
}

/* The lock is held. */
static int wait_for(Event event) {
  while (!passed(event)) pthread_cond_wait(&changed, &lock);
  return sticky;
}

#define ENTER()                         \
  if (!entered) return INVALID_CONTEXT; \
  pthread_mutex_lock(&lock);            \
  int code = sticky

#define LEAVE()                  \
  pthread_mutex_unlock(&lock);   \
  return code

static int fault(const char *kind) {
  const char *chosen = getenv("IMAGINARY_FAULT");
  return chosen && strcmp(chosen, kind) == 0;
}

/* Whether a kernel is one in which something goes wrong. */
static int fault_in(const char *kind, const char *kernel) {
  const char *chosen = getenv("IMAGINARY_FAULT");
  size_t length = strlen(kind);
  return chosen && strncmp(chosen, kind, length) == 0 && chosen[length] == ':' && strstr(kernel, chosen + length + 1);
}

int cuInit(unsigned flags) { return flags ? INVALID_VALUE : fault("absent") ? NO_DEVICE : 0; }

int cuDriverGetVersion(int *version) {
  *version = 12040;
  return 0;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *all) {
  *free_bytes = (size_t)1 << 30, *all = (size_t)2 << 30;
  return entered ? 0 : INVALID_CONTEXT;
}

int cuDeviceGetCount(int *count) {
  *count = GPUS;
  return 0;
}

int cuDeviceGet(int *device, int number) {
  *device = FIRST_GPU + number;
  return number >= 0 && number < GPUS ? 0 : INVALID_DEVICE;
}

/* The number of a handle's GPU, counted from 0. */
static int number_of(int device) {
  int number = device - FIRST_GPU;
  return number >= 0 && number < GPUS ? number : -1;
}

int cuDeviceGetName(char *name, int room, int device) {
  snprintf(name, (size_t)room, "Imaginary %d", device);
  return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  /* Clocks in kHz, the memory's path in bits, multiprocessors, the cache in bytes, and the capability. */
  static const int known[][2] = {{13, 1400000}, {16, 4}, {36, 1200000}, {37, 384}, {38, 1 << 20}, {75, MAJOR}, {76, MINOR}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (known[i][0] == attribute) {
      *value = attribute == 75 && fault("old") ? 7 : known[i][1];
      return number_of(device) < 0 ? INVALID_VALUE : 0;
    }
  return INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
  int gpu = number_of(device);
  if (gpu < 0) return INVALID_DEVICE;
  if (fault("busy")) return DEVICE_UNAVAILABLE;
  pthread_mutex_lock(&lock);
  contexts[gpu].users++;
  if (!started) {
    pthread_t thread;
    started = pthread_create(&thread, NULL, work, NULL) == 0;
  }
  pthread_mutex_unlock(&lock);
  *context = &contexts[gpu];
  return 0;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  int gpu = number_of(device), users = 0, blocks_left = 0;
  if (gpu < 0) return INVALID_DEVICE;
  pthread_mutex_lock(&lock);
  contexts[gpu].users--;
  for (int i = 0; i < GPUS; i++) users += contexts[i].users;
  for (int i = 0; i < MOST; i++) blocks_left += blocks[i].at != NULL;
  if (users == 0) printf("imaginary: %d blocks, %d handles left\n", blocks_left, left);
  fflush(stdout);
  pthread_mutex_unlock(&lock);
  return 0;
}

/* A context's GPU, counted from 1. */
static int gpu_of(void *context) {
  for (int i = 0; i < GPUS; i++)
    if (context == &contexts[i] && contexts[i].users > 0) return i + 1;
  return 0;
}

int cuCtxSetCurrent(void *context) {
  entered = gpu_of(context);
  return entered ? 0 : INVALID_CONTEXT;
}

int cuDeviceCanAccessPeer(int *can, int device, int other) {
  *can = 1;
  return number_of(device) < 0 || number_of(other) < 0 || device == other ? INVALID_DEVICE : 0;
}

int cuCtxEnablePeerAccess(void *context, unsigned flags) {
  int other = gpu_of(context);
  if (!entered || !other || other == entered || flags) return INVALID_VALUE;
  if (contexts[entered - 1].peers[other - 1]++) return PEER_ACCESS_ALREADY_ENABLED;
  return 0;
}

void imaginary_count(int more) {
  pthread_mutex_lock(&lock);
  left += more;
  pthread_mutex_unlock(&lock);
}

int cuModuleLoadData(void **out, const void *image) {
  ENTER();
  if (!code && !strstr(image, ".target sm_")) code = INVALID_VALUE;
  if (!code) *out = strdup(image), left++;
  LEAVE();
}

int cuModuleUnload(void *module) {
  ENTER();
  free(module);
  left--;
  LEAVE();
}

typedef struct {
  char name[256];
  const char *image;
} Function;

int cuModuleGetFunction(void **out, void *module, const char *name) {
  static Function functions[MOST];
  static int count;
  char entry[300];
  ENTER();
  snprintf(entry, sizeof entry, ".entry %s(", name);
  if (!strstr(module, entry)) code = NOT_FOUND;
  if (!code) {
    Function *function = &functions[count++ % MOST];
    snprintf(function->name, sizeof function->name, "%s", name);
    function->image = module, *out = function;
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
  if (!code && (bytes == 0 || i == MOST || (fault("memory") && bytes > 64 << 10))) code = bytes == 0 ? INVALID_VALUE : OUT_OF_MEMORY;
  if (!code) {
    blocks[i].at = aligned_alloc(256, (bytes + 255) / 256 * 256);
    blocks[i].bytes = bytes, blocks[i].gpu = entered;
    memset(blocks[i].at, 0xff, bytes);
    *address = (uintptr_t)blocks[i].at;
  }
  LEAVE();
}

/* Waits for all streams, as the driver does. */
int cuMemFree_v2(uint64_t address) {
  ENTER();
  for (Stream *stream = streams; stream; stream = stream->next) wait_for((Event){stream, stream->asked});
  code = INVALID_VALUE;
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && (uintptr_t)blocks[i].at == address) free(blocks[i].at), blocks[i].at = NULL, code = 0;
  LEAVE();
}

int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
  ENTER();
  if (!code && flags != 1) code = INVALID_VALUE;
  if (!code) *address = aligned_alloc(256, (bytes + 255) / 256 * 256), left++;
  LEAVE();
}

int cuMemFreeHost(void *address) {
  ENTER();
  free(address);
  left--;
  LEAVE();
}

typedef struct {
  void *to;
  const void *from;
  size_t bytes, step;
  uint32_t element;
} Copy;

static int copies(void *argument) {
  Copy *c = argument;
  memmove(c->to, c->from, c->bytes);
  return 0;
}

static int fills(void *argument) {
  Copy *c = argument;
  for (size_t i = 0; i < c->bytes; i += c->step)
    memcpy((char *)c->to + i, &c->element, c->step < 4 ? c->step : 4);
  return 0;
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  void *target = (void *)(uintptr_t)to;
  const void *source = (const void *)(uintptr_t)from;
  int to_gpu = imaginary_owner(target, bytes), from_gpu = imaginary_owner(source, bytes);
  if (bytes == 0 || (to_gpu != entered && from_gpu != entered) || (to_gpu && from_gpu && to_gpu != from_gpu))
    return INVALID_VALUE;
  Copy copy = {target, source, bytes, 0, 0};
  return imaginary_enqueue(stream, copies, &copy, sizeof copy);
}

/* Between GPUs of which that of the stream has been given access to the other. */
int cuMemcpyPeerAsync(uint64_t to, void *to_context, uint64_t from, void *from_context, size_t bytes, void *stream) {
  void *target = (void *)(uintptr_t)to;
  const void *source = (const void *)(uintptr_t)from;
  int to_gpu = gpu_of(to_context), from_gpu = gpu_of(from_context), other = to_gpu == entered ? from_gpu : to_gpu;
  if (!to_gpu || !from_gpu || to_gpu == from_gpu || imaginary_owner(target, bytes) != to_gpu ||
      imaginary_owner(source, bytes) != from_gpu)
    return INVALID_VALUE;
  if (!entered || !contexts[entered - 1].peers[other - 1]) return INVALID_CONTEXT;
  Copy copy = {target, source, bytes, 0, 0};
  return imaginary_enqueue(stream, copies, &copy, sizeof copy);
}

typedef struct {
  size_t x, y;
  int type;
  const void *host;
  uint64_t device;
  void *array;
  size_t pitch;
} Side;

typedef struct {
  Side from, to;
  size_t width, height;
} Rows;

static int rows(void *argument) {
  Rows *c = argument;
  for (size_t i = 0; i < c->height; i++)
    memmove((char *)(uintptr_t)c->to.device + i * c->to.pitch, (char *)(uintptr_t)c->from.device + i * c->from.pitch,
            c->width);
  return 0;
}

static int bad(Side *side, size_t width, size_t height) {
  return side->x || side->y || side->type != 2 || side->pitch < width || side->pitch > 0x7fffffff ||
         !imaginary_known((void *)(uintptr_t)side->device, (height - 1) * side->pitch + width);
}

int cuMemcpy2DAsync_v2(Rows *copy, void *stream) {
  size_t width = copy->width, height = copy->height;
  if (!width || !height || bad(&copy->from, width, height) || bad(&copy->to, width, height)) return INVALID_VALUE;
  return imaginary_enqueue(stream, rows, copy, sizeof *copy);
}

static int fill(uint64_t to, uint32_t element, size_t bytes, size_t step, void *stream) {
  Copy copy = {(void *)(uintptr_t)to, NULL, bytes, step, element};
  if (!imaginary_known(copy.to, step > 4 ? bytes - 4 : bytes)) return INVALID_VALUE;
  return imaginary_enqueue(stream, fills, &copy, sizeof copy);
}

int cuMemsetD8Async(uint64_t to, unsigned char x, size_t n, void *s) { return fill(to, x, n, 1, s); }
int cuMemsetD16Async(uint64_t to, unsigned short x, size_t n, void *s) { return fill(to, x, n * 2, 2, s); }
int cuMemsetD32Async(uint64_t to, unsigned x, size_t n, void *s) { return fill(to, x, n * 4, 4, s); }
int cuMemsetD2D32Async(uint64_t to, size_t pitch, unsigned x, size_t width, size_t height, void *s) {
  return width == 1 ? fill(to, x, pitch * height, pitch, s) : INVALID_VALUE;
}

int cuTensorMapEncodeTiled(void *map, int type, unsigned rank, void *address, const uint64_t *extents,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  /* f16, bf16, and f32 that is rounded to tf32. */
  int half = type == 6 || type == 9;
  size_t element = half ? 2 : 4;
  if ((!half && type != 11) || interleave || swizzle != 3 || promotion < 0 || fill) return INVALID_VALUE;
  if (rank < 2 || rank > 5 || (uintptr_t)address % 16 || box[0] * element != 128 || box[1] > 256) return INVALID_VALUE;
  for (unsigned i = 0; i < rank; i++)
    if (extents[i] == 0 || steps[i] != 1 || (i > 0 && strides[i - 1] % 16)) return INVALID_VALUE;
  memset(map, 0, 128);
  return 0;
}

int cuStreamCreate(void **out, unsigned flags) {
  ENTER();
  if (!code && flags != 1) code = INVALID_VALUE;
  if (!code) {
    Stream *stream = calloc(1, sizeof *stream);
    stream->last = &stream->first, stream->gpu = entered;
    stream->next = streams, streams = stream, left++;
    *out = stream;
  }
  LEAVE();
}

int cuStreamSynchronize(void *handle) {
  Stream *stream = handle;
  ENTER();
  code = wait_for((Event){stream, stream->asked});
  LEAVE();
}

int cuStreamQuery(void *handle) {
  Stream *stream = handle;
  ENTER();
  if (!code && stream->done < stream->asked) code = NOT_READY;
  LEAVE();
}

int cuStreamDestroy_v2(void *handle) {
  Stream *stream = handle, **at = &streams;
  ENTER();
  wait_for((Event){stream, stream->asked});
  while (*at != stream) at = &(*at)->next;
  *at = stream->next, left--;
  /* Events may still name it, so it is kept. */
  LEAVE();
}

int cuEventCreate(void **out, unsigned flags) {
  ENTER();
  if (!code && flags != 3) code = INVALID_VALUE;
  if (!code) *out = calloc(1, sizeof(Event)), left++;
  LEAVE();
}

int cuEventRecord(void *event, void *handle) {
  Stream *stream = handle;
  ENTER();
  if (!code && stream->gpu != entered) code = INVALID_CONTEXT;
  if (!code) *(Event *)event = (Event){stream, stream->asked};
  LEAVE();
}

int cuEventSynchronize(void *event) {
  ENTER();
  code = wait_for(*(Event *)event);
  LEAVE();
}

int cuEventQuery(void *event) {
  ENTER();
  if (!code && !passed(*(Event *)event)) code = NOT_READY;
  LEAVE();
}

int cuEventDestroy_v2(void *event) {
  ENTER();
  free(event);
  left--;
  LEAVE();
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  ENTER();
  if (!code && flags) code = INVALID_VALUE;
  if (!code) {
    Work *work = made(NULL, &(Copy){0}, sizeof(Copy));
    work->awaits = *(Event *)event;
    push(stream, work);
  }
  LEAVE();
}

typedef struct {
  void (*call)(void *);
  void *argument;
} Host;

static int tells(void *argument) {
  Host *host = argument;
  host->call(host->argument);
  return 0;
}

int cuLaunchHostFunc(void *stream, void (*call)(void *), void *argument) {
  if (!entered) return INVALID_CONTEXT;
  Host host = {call, argument};
  pthread_mutex_lock(&lock);
  Work *work = made(tells, &host, sizeof host);
  work->bytes = 0;
  int code = ((Stream *)stream)->records ? INVALID_VALUE : push(stream, work);
  LEAVE();
}

typedef struct {
  Function function;
  unsigned shape[3];
  int count;
  void *addresses[32];
  size_t room[32];
} Launch;

static int launches(void *argument) {
  Launch *launch = argument;
  Function *function = &launch->function;
  const char *name = function->name;
  if (fault_in("crash", name)) abort();
  while (fault_in("hang", name)) pause();
  if (fault_in("illegal", name)) return ILLEGAL_ADDRESS;
  int failed = execute_ptx ? execute_ptx(function->image, function->name, launch->shape, launch->addresses,
                                         launch->room, launch->count)
                           : execute(function->name, launch->addresses);
  int last = launch->count - 1;
  while (execute_ptx && last > 0 && !launch->room[last]) last--;
  if (fault_in("wrong", name)) *(char *)launch->addresses[last] ^= 1;
  return failed ? LAUNCH_FAILED : 0;
}

/* Parameters of a function, as its PTX has them. */
static int parameters_of(const Function *function) {
  char entry[300];
  snprintf(entry, sizeof entry, ".entry %s(", function->name);
  const char *at = strstr(function->image, entry), *end = at ? strchr(at, ')') : NULL;
  int count = 0;
  while (at && (at = strstr(at + 1, ".param")) && at < end) count++;
  return end ? count : -1;
}

/* Bytes from an address to the end of its block; 0 for what is no address. */
static size_t room_at(const char *at) {
  size_t room = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < MOST; i++)
    if (blocks[i].at && blocks[i].gpu == entered && at >= blocks[i].at && at < blocks[i].at + blocks[i].bytes)
      room = (size_t)(blocks[i].at + blocks[i].bytes - at);
  pthread_mutex_unlock(&lock);
  return room;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  Launch launch = {.function = *(Function *)function, .shape = {x, threads, shared}};
  int count = execute_ptx ? parameters_of(function) : arguments_of ? arguments_of(launch.function.name) : -1;
  if (count < 0 || count > 32) return NOT_FOUND;
  if (!x || y != 1 || z != 1 || !threads || ty != 1 || tz != 1 || shared > 227 << 10 || extra) return INVALID_VALUE;
  launch.count = count;
  for (int i = 0; i < count; i++) {
    launch.addresses[i] = *(void **)parameters[i];
    launch.room[i] = room_at(launch.addresses[i]);
  }
  return imaginary_enqueue(stream, launches, &launch, sizeof launch);
}

int cuStreamBeginCapture_v2(void *handle, int mode) {
  Stream *stream = handle;
  ENTER();
  if (!code && (stream->records || mode != 1)) code = INVALID_VALUE;
  if (!code) stream->records = 1, stream->recorded = NULL, stream->recorded_last = &stream->recorded;
  LEAVE();
}

int cuStreamEndCapture(void *handle, void **graph) {
  Stream *stream = handle;
  ENTER();
  if (!code && !stream->records) code = INVALID_VALUE;
  if (!code) stream->records = 0, *graph = malloc(sizeof(Work *)), *(Work **)*graph = stream->recorded, left++;
  LEAVE();
}

/* Copies the work of a graph. */
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags) {
  ENTER();
  if (!code && flags) code = INVALID_VALUE;
  if (!code) {
    Work *copy = NULL, **last = &copy;
    for (Work *work = *(Work **)graph; work; work = work->next)
      *last = made(work->run, work->argument, work->bytes), last = &(*last)->next;
    *out = malloc(sizeof copy), *(Work **)*out = copy, left++;
  }
  LEAVE();
}

int cuGraphLaunch(void *graph, void *stream) {
  ENTER();
  for (Work *work = *(Work **)graph; !code && work; work = work->next)
    code = push(stream, made(work->run, work->argument, work->bytes));
  LEAVE();
}

static int destroyed(void *graph) {
  ENTER();
  for (Work *work = *(Work **)graph, *next; work; work = next) next = work->next, free(work);
  free(graph);
  left--;
  LEAVE();
}

int cuGraphDestroy(void *graph) { return destroyed(graph); }
int cuGraphExecDestroy(void *graph) { return destroyed(graph); }

static const struct {
  int code;
  const char *name, *text;
} errors[] = {
    {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
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
