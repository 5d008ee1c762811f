#!/bin/sh
# run.sh [MINUTES] [OPTION…]: tests and measures tensorc on the first GPU of this machine, most important first, and goes on where an
# earlier run ended. Results are in ./results (--out), of which table.md is for people.
#
#   run.sh 10                             ten minutes at most
#   run.sh 20 --device=1 --again          another GPU; what failed is repeated
#   run.sh 15 --device=interpreted        without a GPU: kernels are executed by the interpreter
#   run.sh 5 --only=kernels-sm_90a        one step; `bin/tensorc-gpu list` names them
here=$(cd "$(dirname "$0")" && pwd)
minutes=10
case "${1:-}" in
    [0-9]*) minutes=$1 && shift ;;
esac
# Libraries of NVIDIA's that came with Python or a toolkit are found by their names.
for folder in /usr/local/cuda/lib64 /usr/local/nvidia/lib64 $(python3 -c '
import glob, sys
for path in sys.path:
    for folder in sorted(glob.glob(path + "/nvidia/*/lib")):
        print(folder)
' 2>/dev/null); do
    [ -d "$folder" ] && LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder"
done
export LD_LIBRARY_PATH
exec "$here/bin/tensorc-gpu" run --minutes "$minutes" "$@"
