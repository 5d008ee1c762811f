/* cuDNN as far as it is called, by plain sums. Of its algorithms the first takes more working memory than anybody has, the second
 * rounds; so who does not look at what it is told about them computes something else. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda.h"

enum { BAD_PARAM = 2000, EXECUTION_FAILED = 5000, NOT_SUPPORTED = 3000 };
enum { DEFAULT_MATH, TENSOR_OP_MATH, TENSOR_OP_MATH_ALLOW_CONVERSION, FMA_MATH };

typedef struct {
  int type, n[4];
} Tensor;

typedef struct {
  int pads[2], strides[2], dilations[2], groups, math;
} Convolution;

typedef struct {
  void *stream;
} Handle;

typedef struct {
  int algorithm, status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
} Found;

static char letter(int type) { return type == 0 ? 'f' : type == 2 ? 'h' : type == 9 ? 'b' : 0; }

static int made(void **out, size_t bytes) {
  *out = calloc(1, bytes);
  imaginary_count(1);
  return 0;
}

static int gone(void *what) {
  free(what);
  imaginary_count(-1);
  return 0;
}

int cudnnCreate(void **out) { return imaginary_entered() ? made(out, sizeof(Handle)) : BAD_PARAM; }
int cudnnDestroy(void *handle) { return gone(handle); }
int cudnnCreateTensorDescriptor(void **out) { return made(out, sizeof(Tensor)); }
int cudnnDestroyTensorDescriptor(void *tensor) { return gone(tensor); }
int cudnnCreateFilterDescriptor(void **out) { return made(out, sizeof(Tensor)); }
int cudnnDestroyFilterDescriptor(void *filter) { return gone(filter); }
int cudnnCreateConvolutionDescriptor(void **out) { return made(out, sizeof(Convolution)); }
int cudnnDestroyConvolutionDescriptor(void *conv) { return gone(conv); }

int cudnnSetStream(Handle *handle, void *stream) {
  handle->stream = stream;
  return 0;
}

int cudnnSetTensor4dDescriptor(Tensor *tensor, int format, int type, int n, int c, int h, int w) {
  *tensor = (Tensor){type, {n, c, h, w}};
  return format || !letter(type) || n < 1 || c < 1 || h < 1 || w < 1 ? BAD_PARAM : 0;
}

int cudnnSetFilter4dDescriptor(Tensor *filter, int type, int format, int k, int c, int h, int w) {
  return cudnnSetTensor4dDescriptor(filter, format, type, k, c, h, w);
}

int cudnnSetConvolution2dDescriptor(Convolution *conv, int pad_h, int pad_w, int u, int v, int dilation_h,
                                    int dilation_w, int mode, int sums) {
  *conv = (Convolution){{pad_h, pad_w}, {u, v}, {dilation_h, dilation_w}, 1, DEFAULT_MATH};
  return mode != 1 || sums != 0 || u < 1 || v < 1 || dilation_h < 1 || dilation_w < 1 ? BAD_PARAM : 0;
}

int cudnnSetConvolutionGroupCount(Convolution *conv, int groups) {
  conv->groups = groups;
  return groups < 1 ? BAD_PARAM : 0;
}

int cudnnSetConvolutionMathType(Convolution *conv, int math) {
  conv->math = math;
  return 0;
}

static int fits(const Tensor *x, const Tensor *w, const Convolution *conv, const Tensor *y) {
  int ok = x->type == w->type && w->type == y->type && x->n[0] == y->n[0] && y->n[1] == w->n[0] &&
           x->n[1] == w->n[1] * conv->groups && w->n[0] % conv->groups == 0;
  for (int i = 0; i < 2; i++) {
    int reach = (w->n[2 + i] - 1) * conv->dilations[i] + 1;
    ok = ok && y->n[2 + i] == 1 + (x->n[2 + i] + 2 * conv->pads[i] - reach) / conv->strides[i];
  }
  return ok;
}

int cudnnGetConvolutionForwardAlgorithm_v7(Handle *handle, const Tensor *x, const Tensor *w, const Convolution *conv,
                                           const Tensor *y, int asked, int *count, Found *found) {
  if (!handle || asked < 3 || !fits(x, w, conv, y)) return BAD_PARAM;
  int half = letter(x->type) != 'f';
  found[0] = (Found){4, 0, 1, (size_t)1 << 40, 1, conv->math, {0}};
  found[1] = (Found){1, 0, 2, 64, 1, TENSOR_OP_MATH, {0}};
  found[2] = (Found){0, 0, 3, 0, 1, half ? TENSOR_OP_MATH : conv->math, {0}};
  /* A size that no algorithm of this library computes. */
  *count = w->n[2] == 13 ? 1 : 3;
  return 0;
}

typedef struct {
  Tensor x, w, y;
  Convolution conv;
  int rounds;
  const void *data, *filters;
  void *to, *memory;
  size_t bytes;
} Call;

/* An f32 as matrix units round it, to 10 bits of fraction. */
static double rounded(double value) {
  float narrow = (float)value;
  uint32_t bits;
  memcpy(&bits, &narrow, 4);
  bits = (bits + 0x1000) & 0xffffe000;
  memcpy(&narrow, &bits, 4);
  return narrow;
}

static int convolve(void *argument) {
  Call *call = argument;
  char type = letter(call->x.type);
  const int *x = call->x.n, *w = call->w.n, *y = call->y.n;
  Convolution *conv = &call->conv;
  int filters = y[1] / conv->groups;
  if (call->memory) memset(call->memory, 0x5a, call->bytes);
  for (long long at = 0; at < (long long)y[0] * y[1] * y[2] * y[3]; at++) {
    int q = (int)(at % y[3]), p = (int)(at / y[3] % y[2]), f = (int)(at / y[3] / y[2] % y[1]);
    long long image = at / y[3] / y[2] / y[1];
    double sum = 0;
    for (int i = 0; i < w[1]; i++)
      for (int r = 0; r < w[2]; r++)
        for (int s = 0; s < w[3]; s++) {
          int row = p * conv->strides[0] + r * conv->dilations[0] - conv->pads[0];
          int column = q * conv->strides[1] + s * conv->dilations[1] - conv->pads[1];
          if (row < 0 || row >= x[2] || column < 0 || column >= x[3]) continue;
          long long channel = (long long)(f / filters) * w[1] + i;
          double value = imaginary_load(type, call->data, ((image * x[1] + channel) * x[2] + row) * x[3] + column);
          double tap = imaginary_load(type, call->filters, (((long long)f * w[1] + i) * w[2] + r) * w[3] + s);
          sum += call->rounds ? rounded(value) * rounded(tap) : value * tap;
        }
    imaginary_store(type, call->to, at, sum);
  }
  return 0;
}

int cudnnConvolutionForward(Handle *handle, const float *alpha, const Tensor *x, const void *data, const Tensor *w,
                            const void *filters, const Convolution *conv, int algorithm, void *workspace, size_t bytes,
                            const float *beta, const Tensor *y, void *to) {
  if (*alpha != 1 || *beta != 0 || !fits(x, w, conv, y)) return BAD_PARAM;
  if (algorithm > 1 || (algorithm == 1 && bytes < 64)) return NOT_SUPPORTED;
  const void *at[] = {data, filters, to};
  for (int i = 0; i < 3; i++)
    if ((uintptr_t)at[i] % 16 || !imaginary_known(at[i], 2)) return BAD_PARAM;
  if (bytes && !imaginary_known(workspace, bytes)) return BAD_PARAM;
  int rounds = letter(x->type) == 'f' && conv->math != FMA_MATH && algorithm == 1;
  Call call = {*x, *w, *y, *conv, rounds, data, filters, to, bytes ? workspace : NULL, bytes};
  return imaginary_enqueue(handle->stream, convolve, &call, sizeof call) ? EXECUTION_FAILED : 0;
}
