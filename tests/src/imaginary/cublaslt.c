/* cuBLASLt as far as it is called, by plain sums. Matrices lie by columns, as the library's do. Shapes that do not fit each other,
 * addresses that are not at the multiples that were promised and working memory that is not there are errors. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { NOT_INITIALIZED = 1, INVALID = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { FAST_TF32 = 77, IN_F32 = 68 };

typedef struct {
  int sums, scale, epilogue;
  int transposed[2];
  const void *bias;
} Operation;

typedef struct {
  int type, count;
  uint64_t rows, columns;
  int64_t leading, stride;
} Layout;

typedef struct {
  uint64_t workspace;
  uint32_t alignment[4];
} Preference;

/* What is chosen, in the bytes of an algorithm. */
typedef struct {
  uint64_t magic, workspace;
  uint32_t alignment[4];
} Algorithm;

typedef struct {
  Algorithm algorithm;
  char rest[64 - sizeof(Algorithm)];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
} Found;

double imaginary_load(char type, const void *at, long long i) {
  uint32_t bits;
  float value;
  switch (type) {
    case 'f':
      return ((const float *)at)[i];
    case 'h':
      return (double)((const _Float16 *)at)[i];
    default:
      bits = (uint32_t)((const uint16_t *)at)[i] << 16;
      memcpy(&value, &bits, 4);
      return value;
  }
}

void imaginary_store(char type, void *at, long long i, double sum) {
  float value = (float)sum;
  uint32_t bits;
  switch (type) {
    case 'f':
      ((float *)at)[i] = value;
      break;
    case 'h':
      ((_Float16 *)at)[i] = (_Float16)value;
      break;
    default:
      memcpy(&bits, &value, 4);
      ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

static char letter(int type) { return type == 0 ? 'f' : type == 2 ? 'h' : type == 14 ? 'b' : 0; }

static int made(void **out, const void *what, size_t bytes) {
  *out = malloc(bytes);
  memcpy(*out, what, bytes);
  imaginary_count(1);
  return 0;
}

static int gone(void *what) {
  free(what);
  imaginary_count(-1);
  return 0;
}

int cublasLtCreate(void **out) { return imaginary_entered() ? made(out, "lt", 3) : NOT_INITIALIZED; }
int cublasLtDestroy(void *handle) { return gone(handle); }

int cublasLtMatmulDescCreate(void **out, int sums, int scale) {
  Operation operation = {sums, scale, 1, {0, 0}, NULL};
  return (sums != FAST_TF32 && sums != IN_F32) || scale != 0 ? INVALID : made(out, &operation, sizeof operation);
}
int cublasLtMatmulDescDestroy(void *operation) { return gone(operation); }

int cublasLtMatmulDescSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
  Operation *operation = handle;
  void *to = attribute == 3   ? &operation->transposed[0]
             : attribute == 4 ? &operation->transposed[1]
             : attribute == 7 ? &operation->epilogue
             : attribute == 8 ? (void *)&operation->bias
                              : NULL;
  if (!to || bytes != (attribute == 8 ? 8 : 4)) return INVALID;
  memcpy(to, value, bytes);
  return 0;
}

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  Layout layout = {type, 1, rows, columns, leading, 0};
  return !letter(type) || leading < (int64_t)rows ? INVALID : made(out, &layout, sizeof layout);
}
int cublasLtMatrixLayoutDestroy(void *layout) { return gone(layout); }

int cublasLtMatrixLayoutSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
  Layout *layout = handle;
  if (bytes != (attribute == 5 ? 4 : 8) || (attribute != 5 && attribute != 6)) return INVALID;
  memcpy(attribute == 5 ? (void *)&layout->count : (void *)&layout->stride, value, bytes);
  return 0;
}

int cublasLtMatmulPreferenceCreate(void **out) {
  Preference preference = {0, {256, 256, 256, 256}};
  return made(out, &preference, sizeof preference);
}
int cublasLtMatmulPreferenceDestroy(void *preference) { return gone(preference); }

int cublasLtMatmulPreferenceSetAttribute(void *handle, int attribute, const void *value, size_t bytes) {
  Preference *preference = handle;
  if (attribute == 1 ? bytes != 8 : bytes != 4 || attribute < 5 || attribute > 8) return INVALID;
  memcpy(attribute == 1 ? (void *)&preference->workspace : (void *)&preference->alignment[attribute - 5], value, bytes);
  return 0;
}

/* Rows and columns of an operand as it is multiplied. */
static void shape(const Layout *layout, int transposed, uint64_t *rows, uint64_t *columns) {
  *rows = transposed ? layout->columns : layout->rows;
  *columns = transposed ? layout->rows : layout->columns;
}

static int fits(const Operation *operation, const Layout *a, const Layout *b, const Layout *d) {
  uint64_t m, n, k, terms;
  shape(a, operation->transposed[0], &m, &k);
  shape(b, operation->transposed[1], &terms, &n);
  int same = a->type == b->type && b->type == d->type && a->count == b->count && b->count == d->count;
  return same && k == terms && m == d->rows && n == d->columns;
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, const Operation *operation, const Layout *a, const Layout *b,
                                   const Layout *c, const Layout *d, const Preference *preference, int asked,
                                   Found *found, int *count) {
  if (!handle || c != d || asked < 1 || !fits(operation, a, b, d)) return INVALID;
  if (operation->epilogue != 1 && operation->epilogue != 4) return INVALID;
  /* A size that no algorithm of this library computes. */
  if (a->rows == 13 || a->columns == 13) {
    *count = 0;
    return NOT_SUPPORTED;
  }
  memset(found, 0, sizeof *found);
  found->algorithm.magic = 0xa160;
  found->algorithm.workspace = found->workspace = preference->workspace;
  memcpy(found->algorithm.alignment, preference->alignment, sizeof preference->alignment);
  *count = 1;
  return 0;
}

typedef struct {
  Operation operation;
  Layout a, b, d;
  const void *left, *right;
  void *to, *memory;
  size_t bytes;
} Product;

static int multiply(void *argument) {
  Product *p = argument;
  char type = letter(p->d.type);
  uint64_t terms = p->operation.transposed[0] ? p->a.rows : p->a.columns;
  if (p->memory) memset(p->memory, 0x5a, p->bytes);
  for (int batch = 0; batch < p->d.count; batch++)
    for (uint64_t i = 0; i < p->d.rows; i++)
      for (uint64_t j = 0; j < p->d.columns; j++) {
        double sum = 0;
        for (uint64_t k = 0; k < terms; k++) {
          uint64_t left = p->operation.transposed[0] ? k + i * (uint64_t)p->a.leading : i + k * (uint64_t)p->a.leading;
          uint64_t right = p->operation.transposed[1] ? j + k * (uint64_t)p->b.leading : k + j * (uint64_t)p->b.leading;
          sum += imaginary_load(type, p->left, (long long)left + batch * p->a.stride) *
                 imaginary_load(type, p->right, (long long)right + batch * p->b.stride);
        }
        if (p->operation.epilogue == 4) sum += imaginary_load(type, p->operation.bias, (long long)i);
        imaginary_store(type, p->to, (long long)(i + j * (uint64_t)p->d.leading) + batch * p->d.stride, sum);
      }
  return 0;
}

int cublasLtMatmul(void *handle, const Operation *operation, const float *alpha, const void *a, const Layout *of_a,
                   const void *b, const Layout *of_b, const float *beta, const void *c, const Layout *of_c, void *d,
                   const Layout *of_d, const Algorithm *algorithm, void *workspace, size_t bytes, void *stream) {
  if (!handle || *alpha != 1 || *beta != 0 || c != d || of_c != of_d || algorithm->magic != 0xa160) return INVALID;
  if (!fits(operation, of_a, of_b, of_d) || bytes < algorithm->workspace) return INVALID;
  const void *at[] = {a, b, c, d};
  for (int i = 0; i < 4; i++)
    if ((uintptr_t)at[i] % algorithm->alignment[i] || !imaginary_known(at[i], 2)) return INVALID;
  if (bytes && ((uintptr_t)workspace % 16 || !imaginary_known(workspace, bytes))) return INVALID;
  if (operation->epilogue == 4 && !imaginary_known(operation->bias, 2 * of_d->rows)) return INVALID;
  Product product = {*operation, *of_a, *of_b, *of_d, a, b, d, bytes ? workspace : NULL, bytes};
  return imaginary_enqueue(stream, multiply, &product, sizeof product) ? EXECUTION_FAILED : 0;
}
