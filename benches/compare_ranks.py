"""A training step of two processes with a thread each against one process with two threads, interleaved.

  python3 benches/compare_ranks.py [--nets resnet18,transformer] [--rounds 8] [--steps 40] [-- MPIRUN-OPTION …]

The same batch, shared out by a `dist_sync` store. Prints medians over the rounds of the median step, in ms, their ratio, the
median over the rounds of both processes' share of communication during which their plans ran, by their traces, and how long
it took in a step. Needs
  cargo build --release -p tensorc-bench --features mpi
"""
import argparse, json, statistics, subprocess


def run(command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise SystemExit(f"{command}:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--nets", default="resnet18,transformer")
    ap.add_argument("--program", default="target/release/tensorc-bench")
    ap.add_argument("--rounds", type=int, default=8)
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("options", nargs="*")
    a = ap.parse_args()
    print("| network | 1 process, 2 threads, ms | 2 processes, 1 thread, ms | ratio | of shortest | hidden | communication, ms |")
    print("|---|---|---|---|---|---|---|")
    for net in a.nets.split(","):
        one, two = [], []
        for _ in range(a.rounds):
            step = [a.program, "ranks", net, "--steps", a.steps]
            one.append(run([*step, "--threads", 2]))
            two.append(run(["mpirun", "-n", 2, *a.options, *step, "--threads", 1, "--kv-store", "dist_sync"]))
        median = lambda runs, of: statistics.median(of(run) for run in runs)
        alone, shared = (median(runs, lambda run: run["step_ms"]) for runs in (one, two))
        best = min(run["best_ms"] for run in two) / min(run["best_ms"] for run in one)
        hidden = median(two, lambda run: statistics.mean(run["hidden_shares"]))
        moving = median(two, lambda run: run["communication_ms"])
        print(f"| {net} | {alone:.4g} | {shared:.4g} | {shared / alone:.2f} | {best:.2f} | {hidden:.2f} | {moving:.3g} |", flush=True)


if __name__ == "__main__":
    main()
