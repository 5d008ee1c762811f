/* What the imaginary libraries know of the imaginary driver. */
#include <stddef.h>

/* Has a stream run a function of a copy of some bytes; 0, or why not. */
int imaginary_enqueue(void *stream, int (*run)(void *), const void *argument, size_t bytes);
/* Whether memory of the device has these bytes. */
int imaginary_known(const void *address, size_t bytes);
/* Whether the thread has entered the context. */
int imaginary_entered(void);
/* The GPU, counted from 1, in whose memory bytes are, or whose stream it is; 0 if there is none. */
int imaginary_owner(const void *address, size_t bytes);
int imaginary_gpu(void *stream);
/* Lets the thread enter the context of a GPU, counted from 1; which one it had entered. */
int imaginary_enter(int gpu);
/* Lets a stream wait for what another one was asked so far. */
void imaginary_follow(void *stream, void *other);
/* Counts handles that are to be destroyed. */
void imaginary_count(int more);
/* An element of a type: 'f' f32, 'h' f16, 'b' bf16. */
double imaginary_load(char type, const void *at, long long i);
void imaginary_store(char type, void *at, long long i, double value);
