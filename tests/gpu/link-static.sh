#!/usr/bin/env bash
# A linker for programs that run where there is nothing but a C library: LLVM, what it needs, and the libraries of C++ are linked
# statically. Rust's compiler calls it with the arguments of `cc`.
set -euo pipefail

arguments=()
for argument; do
    case "$argument" in
        -lLLVM* | -l:libLLVM*)
            # shellcheck disable=SC2207
            arguments+=(-Wl,-Bstatic $(llvm-config-22 --link-static --libs all) -lffi -lz -lzstd -lxml2 -Wl,-Bdynamic)
            ;;
        # Rust's own libraries of C, the interpreter of LLVM, and C++.
        -lffi | -lz | -lzstd | -lxml2 | -lstdc++) arguments+=(-Wl,-Bstatic "$argument" -Wl,-Bdynamic) ;;
        -lgcc_s) arguments+=(-Wl,-Bstatic -lgcc_eh -Wl,-Bdynamic) ;;
        *) arguments+=("$argument") ;;
    esac
done
exec cc -static-libgcc "${arguments[@]}"
