// Calls compiled kernels on the buffers it reads from standard input, and writes what they hold afterwards to
// standard output. All numbers are 64-bit integers of this machine, which is little-endian like all targets:
// for each call the kernel, its scalars and buffers, each counted; a buffer has its alignment, its bytes, and so many
// bytes of contents.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef void kernel(unsigned char *const *buffers, const int64_t *scalars);
extern kernel *const kernels[];

static int read_number(int64_t *number) { return fread(number, sizeof *number, 1, stdin) == 1; }

static void expect(int condition) {
    if (!condition) {
        fprintf(stderr, "input ends too early\n");
        exit(1);
    }
}

int main(void) {
    int64_t which;
    while (read_number(&which)) {
        int64_t count, scalars[16], bytes[16];
        unsigned char *buffers[16], *memory[16];
        expect(read_number(&count) && count <= 16);
        for (int64_t i = 0; i < count; i++) expect(read_number(&scalars[i]));
        expect(read_number(&count) && count <= 16);
        for (int64_t i = 0; i < count; i++) {
            int64_t align;
            expect(read_number(&align) && read_number(&bytes[i]));
            // Aligned for an element and no more.
            expect((memory[i] = aligned_alloc(64, (bytes[i] + 127) / 64 * 64)) != NULL);
            buffers[i] = memory[i] + align % 64;
            expect(fread(buffers[i], 1, bytes[i], stdin) == (size_t)bytes[i]);
        }
        kernels[which](buffers, scalars);
        for (int64_t i = 0; i < count; i++) {
            expect(fwrite(buffers[i], 1, bytes[i], stdout) == (size_t)bytes[i]);
            free(memory[i]);
        }
    }
    return 0;
}
