"""Time of the store's sum over processes against MPI_Allreduce, interleaved.

  python3 benches/compare_allreduce.py [--ranks 2,4] [--rounds 7] [--programs target/release/examples] [-- MPIRUN-OPTION …]

100 MB of f32 in pieces of 4 MB by `bench_allreduce`, with the copies into and out of messages, and at once by
`bench_mpi_allreduce`, in processes that take turns: medians over the rounds of the medians of both, in ms, the same of the
shortest times, and the ratio, below 1 tensorc is faster. Needs
  cargo build --release -p tensorc-kvstore --features mpi --examples
"""
import argparse, os, statistics, subprocess


def run(program, ranks, options):
    command = ["mpirun", "--oversubscribe", "-n", str(ranks), *options, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}:\n{done.stderr}")
    return [float(number) for number in done.stdout.split()[-2:]]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--ranks", default="2,4")
    ap.add_argument("--rounds", type=int, default=7)
    ap.add_argument("--programs", default="target/release/examples")
    ap.add_argument("options", nargs="*")
    a = ap.parse_args()
    print("| ranks | tensorc, ms | MPI_Allreduce, ms | ratio | shortest, ms | | ratio |\n|---|---|---|---|---|---|---|")
    for ranks in map(int, a.ranks.split(",")):
        times = {"bench_allreduce": [], "bench_mpi_allreduce": []}
        for _ in range(a.rounds):
            for program, found in times.items():
                found.append(run(os.path.join(a.programs, program), ranks, a.options))
        (own, own_best), (mpi, mpi_best) = ([statistics.median(column) for column in zip(*found)] for found in times.values())
        print(f"| {ranks} | {own:.3g} | {mpi:.3g} | {own / mpi:.2f} | {own_best:.3g} | {mpi_best:.3g} | {own_best / mpi_best:.2f} |", flush=True)


if __name__ == "__main__":
    main()
