/* Runs a model on tensors that lie in the memory of a GPU: arguments are the driver, the weights and the images. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "digits.h"

#define FIND(name, ...) int (*name)(__VA_ARGS__) = (int (*)(__VA_ARGS__))dlsym(driver, #name)
#define DO(call)                        \
  if ((call) != 0) {                    \
    fprintf(stderr, "%s fails\n", #call); \
    return 1;                           \
  }

int main(int argc, char **argv) {
  void *driver = argc == 4 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!driver) return 2;
  FIND(cuDevicePrimaryCtxRetain, void **, int);
  FIND(cuDevicePrimaryCtxRelease_v2, int);
  FIND(cuDeviceGet, int *, int);
  FIND(cuCtxPushCurrent_v2, void *);
  FIND(cuCtxPopCurrent_v2, void **);
  FIND(cuMemAlloc_v2, uint64_t *, size_t);
  FIND(cuMemFree_v2, uint64_t);
  FIND(cuStreamCreate, void **, unsigned);
  FIND(cuStreamSynchronize, void *);
  FIND(cuStreamDestroy_v2, void *);
  FIND(cuMemcpyHtoDAsync_v2, uint64_t, const void *, size_t, void *);
  FIND(cuMemcpyDtoHAsync_v2, void *, uint64_t, size_t, void *);

  float images[128], scores[20];
  int64_t digits[2];
  FILE *file = fopen(argv[3], "rb");
  if (!file || fread(images, sizeof images, 1, file) != 1) return 2;
  fclose(file);

  int device;
  void *gpu, *stream;
  uint64_t there;
  DO(cuDeviceGet(&device, 0));
  DO(cuDevicePrimaryCtxRetain(&gpu, device));
  DO(cuCtxPushCurrent_v2(gpu));
  DO(cuMemAlloc_v2(&there, 1024));
  DO(cuStreamCreate(&stream, 1));
  DO(cuMemcpyHtoDAsync_v2(there, images, sizeof images, stream));
  DO(cuStreamSynchronize(stream));
  DO(cuCtxPopCurrent_v2(&gpu));

  tc_weights weights;
  digits_context *context;
  tc_gpu on = {0, 0, argv[1], ""};
  DO(digits_weights_open(argv[2], 0, &weights));
  DO(digits_init_on(&context, &on, NULL, 0, &weights));
  int64_t dims[4] = {2, 1, 8, 8};
  /* The input and one output lie there, the other output here. */
  tc_tensor input = {(void *)(uintptr_t)there, dims, 4, TC_F32 | TC_ON_DEVICE, sizeof images};
  tc_tensor outputs[DIGITS_OUTPUTS] = {
      {digits, NULL, 0, 0, sizeof digits},
      {(void *)(uintptr_t)(there + 512), NULL, 0, TC_ON_DEVICE, sizeof scores},
  };
  DO(digits_run(context, &input, outputs));

  DO(cuCtxPushCurrent_v2(gpu));
  DO(cuMemcpyDtoHAsync_v2(scores, there + 512, sizeof scores, stream));
  DO(cuStreamSynchronize(stream));
  for (int i = 0; i < 2; i++) {
    uint32_t bits;
    memcpy(&bits, &scores[10 * i + digits[i]], sizeof bits);
    printf("%d %08x\n", (int)digits[i], (unsigned)bits);
  }
  /* Kernels rely on the alignment of what is there. */
  input.data = (void *)(uintptr_t)(there + 4);
  if (digits_run(context, &input, outputs) != TC_BUFFER) return 1;
  puts(digits_error(context));
  digits_free(context);
  digits_weights_close(&weights);
  DO(cuStreamDestroy_v2(stream));
  DO(cuMemFree_v2(there));
  DO(cuCtxPopCurrent_v2(&gpu));
  return cuDevicePrimaryCtxRelease_v2(device);
}
