/* NCCL as far as it is called: communicators of the devices of one process, and exchanges in groups of one thread's calls. What the
 * library cannot find out, and would wait or compute wrong numbers for, is an error here: ranks that do different things or are missing,
 * streams and memory of another GPU than the communicator's, calls outside of a group. The sums are those of the last rank first. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { SUCCESS, UNHANDLED_CUDA_ERROR, SYSTEM_ERROR, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR };
enum { ALL_REDUCE, REDUCE, BROADCAST, KINDS };
enum { INT8, UINT8, INT32, UINT32, INT64, UINT64, FLOAT16, FLOAT32, FLOAT64, BFLOAT16, TYPES };
/* What is to fail next. */
enum { NOTHING, INIT, CALL, END, LATER };
enum { RANKS = 2, MOST = 64, MAGIC = 0x6e63636c };

typedef struct Comm {
  int magic, rank, gpu;
  struct Clique *clique;
} Comm;

typedef struct Clique {
  Comm comms[RANKS];
  int ranks, alive;
} Clique;

typedef struct {
  int kind, type, root;
  size_t count;
  const void *from;
  void *to, *stream;
  Comm *comm;
} Call;

/* An exchange that streams have begun. */
typedef struct {
  int kind, type, root, ranks, to_come;
  size_t count;
  char *parts[RANKS];
} Exchange;

typedef struct {
  Exchange *exchange;
  int rank;
  const void *from;
  void *to;
} Step;

static const size_t bytes_of[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
static int failing, failed_later, made[KINDS], aborted;
static _Thread_local int depth;
static _Thread_local Call calls[MOST];
static _Thread_local int asked, refused;

int imaginary_nccl_fail(int what) {
  failing = what;
  if (what == LATER) failed_later = 1;
  return 0;
}

/* Calls of a kind for one device so far, or communicators that were aborted. */
int imaginary_nccl_made(int kind) { return kind < KINDS ? made[kind] : aborted; }

static int fails(int what) {
  if (failing != what) return 0;
  failing = NOTHING;
  return 1;
}

int ncclGetVersion(int *version) {
  *version = 22304;
  return SUCCESS;
}

const char *ncclGetErrorString(int status) {
  switch (status) {
    case SUCCESS:
      return "no error";
    case SYSTEM_ERROR:
      return "unhandled system error";
    case INVALID_ARGUMENT:
      return "invalid argument";
    case INVALID_USAGE:
      return "invalid usage";
    case REMOTE_ERROR:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

int ncclCommInitAll(Comm **out, int count, const int *devices) {
  if (count < 1 || count > RANKS) return INVALID_ARGUMENT;
  if (fails(INIT)) return SYSTEM_ERROR;
  Clique *clique = calloc(1, sizeof *clique);
  clique->ranks = clique->alive = count, failed_later = 0;
  for (int i = 0; i < count; i++) {
    for (int k = 0; k < i; k++)
      if (devices[k] == devices[i]) return INVALID_USAGE;
    clique->comms[i] = (Comm){MAGIC, i, devices[i] + 1, clique};
    out[i] = &clique->comms[i];
    imaginary_count(1);
  }
  return SUCCESS;
}

static int known(const Comm *comm) { return comm && comm->magic == MAGIC; }

int ncclCommDestroy(Comm *comm) {
  if (!known(comm)) return INVALID_ARGUMENT;
  Clique *clique = comm->clique;
  comm->magic = 0;
  imaginary_count(-1);
  if (--clique->alive == 0) free(clique);
  return SUCCESS;
}

int ncclCommAbort(Comm *comm) {
  aborted++;
  return ncclCommDestroy(comm);
}

int ncclCommGetAsyncError(Comm *comm, int *status) {
  if (!known(comm)) return INVALID_ARGUMENT;
  *status = failed_later && comm->rank == 1 ? REMOTE_ERROR : SUCCESS;
  return SUCCESS;
}

int ncclGroupStart(void) {
  if (depth++ == 0) asked = refused = 0;
  return SUCCESS;
}

static int ask(Call call) {
  if (!depth) return INVALID_USAGE;
  if (fails(CALL)) return refused = SYSTEM_ERROR;
  if (!known(call.comm) || call.type < 0 || call.type >= TYPES || asked == MOST) return refused = INVALID_ARGUMENT;
  int ranks = call.comm->clique->ranks, gpu = call.comm->gpu;
  size_t bytes = call.count * bytes_of[call.type];
  int reads = call.kind != BROADCAST || call.root == call.comm->rank;
  int writes = call.kind != REDUCE || call.root == call.comm->rank;
  if (call.root < 0 || call.root >= ranks || imaginary_gpu(call.stream) != gpu) return refused = INVALID_ARGUMENT;
  if ((uintptr_t)call.from % bytes_of[call.type] || (uintptr_t)call.to % bytes_of[call.type])
    return refused = INVALID_ARGUMENT;
  if (reads && imaginary_owner(call.from, bytes) != gpu) return refused = INVALID_ARGUMENT;
  if (writes && imaginary_owner(call.to, bytes) != gpu) return refused = INVALID_ARGUMENT;
  calls[asked++] = call;
  made[call.kind]++;
  return SUCCESS;
}

int ncclAllReduce(const void *from, void *to, size_t count, int type, int op, Comm *comm, void *stream) {
  return op ? INVALID_ARGUMENT : ask((Call){ALL_REDUCE, type, 0, count, from, to, stream, comm});
}

int ncclReduce(const void *from, void *to, size_t count, int type, int op, int root, Comm *comm, void *stream) {
  return op ? INVALID_ARGUMENT : ask((Call){REDUCE, type, root, count, from, to, stream, comm});
}

int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, Comm *comm, void *stream) {
  return ask((Call){BROADCAST, type, root, count, from, to, stream, comm});
}

static void add(int type, void *to, const void *from, long long i) {
  char letter = type == FLOAT16 ? 'h' : type == BFLOAT16 ? 'b' : 'f';
  switch (type) {
    case INT8:
    case UINT8:
      ((uint8_t *)to)[i] += ((const uint8_t *)from)[i];
      break;
    case INT32:
    case UINT32:
      ((uint32_t *)to)[i] += ((const uint32_t *)from)[i];
      break;
    case INT64:
    case UINT64:
      ((uint64_t *)to)[i] += ((const uint64_t *)from)[i];
      break;
    case FLOAT64:
      ((double *)to)[i] += ((const double *)from)[i];
      break;
    default:
      imaginary_store(letter, to, i, imaginary_load(letter, to, i) + imaginary_load(letter, from, i));
  }
}

/* A stream has come to its part of an exchange. */
static int arrives(void *argument) {
  Step *step = argument;
  Exchange *exchange = step->exchange;
  size_t bytes = exchange->count * bytes_of[exchange->type];
  exchange->parts[step->rank] = malloc(bytes + 1);
  if (exchange->kind != BROADCAST || step->rank == exchange->root)
    memcpy(exchange->parts[step->rank], step->from, bytes);
  return 0;
}

/* All streams have come there. */
static int leaves(void *argument) {
  Step *step = argument;
  Exchange *exchange = step->exchange;
  size_t bytes = exchange->count * bytes_of[exchange->type];
  int last = exchange->ranks - 1;
  if (exchange->kind == BROADCAST) {
    memcpy(step->to, exchange->parts[exchange->root], bytes);
  } else if (exchange->kind == ALL_REDUCE || step->rank == exchange->root) {
    char *sums = malloc(bytes + 1);
    memcpy(sums, exchange->parts[last], bytes);
    for (int rank = last - 1; rank >= 0; rank--)
      for (size_t i = 0; i < exchange->count; i++) add(exchange->type, sums, exchange->parts[rank], (long long)i);
    memcpy(step->to, sums, bytes);
    free(sums);
  }
  if (--exchange->to_come == 0) {
    for (int rank = 0; rank <= last; rank++) free(exchange->parts[rank]);
    free(exchange);
  }
  return 0;
}

/* The calls of all ranks for one exchange, whose first one is at a place; 0 if they do not fit. */
static int gather(int first, Call **found) {
  Clique *clique = calls[first].comm->clique;
  int before = 0;
  memset(found, 0, RANKS * sizeof *found);
  for (int i = 0; i < first; i++) before += calls[i].comm == calls[first].comm;
  for (int rank = 0; rank < clique->ranks; rank++) {
    int skip = before;
    for (int i = 0; i < asked && !found[rank]; i++)
      if (calls[i].comm == &clique->comms[rank] && skip-- == 0) found[rank] = &calls[i];
    const Call *a = found[0], *b = found[rank];
    if (!b || a->kind != b->kind || a->type != b->type || a->count != b->count || a->root != b->root) return 0;
  }
  return clique->ranks;
}

static int enqueue(Call **all, int ranks) {
  Exchange *exchange = calloc(1, sizeof *exchange);
  *exchange = (Exchange){all[0]->kind, all[0]->type, all[0]->root, ranks, ranks, all[0]->count, {0}};
  int before = imaginary_entered(), code = 0;
  for (int rank = 0; rank < ranks && !code; rank++) {
    Step step = {exchange, rank, all[rank]->from, all[rank]->to};
    imaginary_enter(all[rank]->comm->gpu);
    code = imaginary_enqueue(all[rank]->stream, arrives, &step, sizeof step);
  }
  for (int rank = 0; rank < ranks && !code; rank++)
    for (int other = 0; other < ranks; other++)
      if (other != rank) imaginary_follow(all[rank]->stream, all[other]->stream);
  for (int rank = 0; rank < ranks && !code; rank++) {
    Step step = {exchange, rank, all[rank]->from, all[rank]->to};
    imaginary_enter(all[rank]->comm->gpu);
    code = imaginary_enqueue(all[rank]->stream, leaves, &step, sizeof step);
  }
  imaginary_enter(before);
  return code ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

int ncclGroupEnd(void) {
  if (!depth) return INVALID_USAGE;
  if (--depth) return SUCCESS;
  if (refused) return refused;
  if (fails(END)) return INTERNAL_ERROR;
  Call *all[RANKS];
  for (int i = 0; i < asked; i++)
    if (!gather(i, all)) return INVALID_USAGE;
  for (int i = 0; i < asked; i++) {
    int ranks = gather(i, all);
    if (all[0] == &calls[i]) {
      int code = enqueue(all, ranks);
      if (code) return code;
    }
  }
  return SUCCESS;
}
