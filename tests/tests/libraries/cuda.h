/* What the imaginary libraries know of the imaginary driver. */
#include <stddef.h>

/* Has a stream run a function of a copy of some bytes; 0, or why not. */
int imaginary_enqueue(void *stream, int (*run)(void *), const void *argument, size_t bytes);
/* Whether memory of the device has these bytes. */
int imaginary_known(const void *address, size_t bytes);
/* Whether the thread has entered the context. */
int imaginary_entered(void);
/* Counts handles that are to be destroyed. */
void imaginary_count(int more);
/* An element of a type: 'f' f32, 'h' f16, 'b' bf16. */
double imaginary_load(char type, const void *at, long long i);
void imaginary_store(char type, void *at, long long i, double value);
