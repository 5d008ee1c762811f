/* Runs a model whose shapes depend on values in memory of its own: describes, runs, and prints what was found. */
#include <stdio.h>
#include <stdlib.h>

#include "m.h"

#define ROWS 7
#define COLUMNS 16

int main(int argc, char **argv) {
  m_context *context;
  uint64_t bytes = m_memory_bytes(1);
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (argc < 2 || m_init(&context, memory, bytes, NULL, NULL) != TC_OK) return 1;
  float x[ROWS * COLUMNS];
  for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = (float)(i * 37 % 101);
  int64_t x_dims[] = {ROWS, COLUMNS}, k_dims[] = {1};
  for (int run = 1; run < argc; run++) {
    int64_t k = atoll(argv[run]);
    tc_tensor inputs[M_INPUTS] = {{x, x_dims, 2, TC_F32, sizeof x}, {&k, k_dims, 1, TC_I64, sizeof k}};
    tc_tensor outputs[M_OUTPUTS];
    if (m_describe(context, inputs, outputs) != TC_OK) return 1;
    printf("most %lld of %llu bytes;", (long long)outputs[1].dims[1], (unsigned long long)outputs[1].bytes);
    for (int i = 0; i < M_OUTPUTS; i++) outputs[i].data = malloc(outputs[i].bytes);
    tc_status status = m_run(context, inputs, outputs);
    if (status != TC_OK) {
      printf(" %d: %s\n", (int)status, m_error(context));
    } else {
      printf(" %u: %lld, %lld:", outputs[1].rank, (long long)outputs[1].dims[0], (long long)outputs[1].dims[1]);
      for (int64_t i = 0; i < outputs[1].dims[0] * outputs[1].dims[1]; i++)
        printf(" %lld", (long long)((int64_t *)outputs[1].data)[i]);
      printf("\n");
    }
    for (int i = 0; i < M_OUTPUTS; i++) free(outputs[i].data);
  }
  m_free(context);
  free(memory);
  return 0;
}
