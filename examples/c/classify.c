/* Reads a compiled digit classifier's input from a file of raw floats and prints the digits.
 *
 *   tensorc compile examples/digits/digits.onnx -o digits --shape batch=1..4 --emit=static-lib
 *   cc -O2 -I. examples/c/classify.c digits.a -lm -lpthread -o classify
 *   ./classify digits.weights images.f32
 *
 * It shows what a program does with memory of its own: two contexts share one set of weights, nothing is
 * allocated by the model, and the second context shares its work among threads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "digits.h"

enum { PIXELS = 64, CLASSES = 10, MOST = 4 };

static int fail(const char *what, tc_status status, const digits_context *context) {
  fprintf(stderr, "%s: %s %s\n", what, tc_rt_status_text(status), context ? digits_error(context) : "");
  return 1;
}

/* Runs a batch and prints a line for every image. */
static int classify(digits_context *context, float *images, int64_t batch) {
  int64_t dims[4] = {batch, 1, 8, 8};
  int64_t digit[MOST];
  float probabilities[MOST * CLASSES];
  tc_tensor input = {images, dims, 4, TC_F32, (uint64_t)batch * PIXELS * sizeof(float)};
  tc_tensor outputs[DIGITS_OUTPUTS] = {
      {digit, NULL, 0, 0, sizeof digit},
      {probabilities, NULL, 0, 0, sizeof probabilities},
  };
  tc_status status = digits_run(context, &input, outputs);
  if (status != TC_OK) return fail("run", status, context);
  for (int64_t i = 0; i < batch; i++) {
    uint32_t bits;
    memcpy(&bits, &probabilities[i * CLASSES + digit[i]], sizeof bits);
    printf("%d %08x\n", (int)digit[i], (unsigned)bits);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc != 3) {
    fprintf(stderr, "usage: %s digits.weights images.f32\n", argv[0]);
    return 2;
  }
  float images[MOST * PIXELS];
  FILE *file = fopen(argv[2], "rb");
  size_t batch = file ? fread(images, PIXELS * sizeof(float), MOST, file) : 0;
  if (file) fclose(file);
  if (batch == 0) {
    fprintf(stderr, "%s: no images\n", argv[2]);
    return 1;
  }

  tc_weights weights;
  tc_status status = digits_weights_open(argv[1], 0, &weights);
  if (status != TC_OK) return fail(argv[1], status, NULL);
  tc_parallel threads;
  status = tc_rt_threads_start(2, &threads);
  if (status != TC_OK) return fail("threads", status, NULL);

  digits_context *context[2] = {NULL, NULL};
  void *memory[2];
  for (int i = 0; i < 2; i++) {
    const tc_parallel *parallel = i == 0 ? NULL : &threads;
    uint64_t bytes = digits_memory_bytes(parallel ? parallel->workers : 1);
    memory[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
    if (!memory[i]) return fail("memory", TC_MEMORY, NULL);
    status = digits_init(&context[i], memory[i], bytes, &weights, parallel);
    if (status != TC_OK) return fail("init", status, NULL);
  }

  int failed = classify(context[0], images, (int64_t)batch) || classify(context[1], images, (int64_t)batch);
  /* The model was not compiled for so many images: an error that says so. */
  int64_t dims[4] = {MOST + 1, 1, 8, 8};
  tc_tensor input = {images, dims, 4, TC_F32, sizeof images}, outputs[DIGITS_OUTPUTS];
  if (digits_describe(context[0], &input, outputs) == TC_SHAPE) printf("%s\n", digits_error(context[0]));

  for (int i = 0; i < 2; i++) {
    digits_free(context[i]);
    free(memory[i]);
  }
  tc_rt_threads_stop(&threads);
  digits_weights_close(&weights);
  return failed;
}
