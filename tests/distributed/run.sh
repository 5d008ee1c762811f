#!/usr/bin/env bash
# Training over processes, as users start it: examples/train_distributed.rs under a launcher of MPI.
#
#     tests/distributed/run.sh [FOLDER]
#     tests/distributed/run.sh [FOLDER] launcher
#     tests/distributed/run.sh [FOLDER] faults COUNT
#
# FOLDER has the examples, built with `--features mpi` for the MPI of the launcher $MPIRUN (mpirun if not given). Prints a line
# for each check and stops at the first that fails. Every job has a time limit, and none may leave a process behind.
# The second form leaves out what does not depend on the MPI and its launcher: whole trainings, and kinds of stores. The third
# only lets ranks of COUNT jobs go wrong, at random points.
set -euo pipefail
cd "$(dirname "$0")/../.."

folder="$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release/examples}")"
program="$folder/train_distributed"
mpirun="${MPIRUN:-mpirun}"
# Seconds: how long ranks wait for each other, how long a job may take that fails, and one that trains.
deadline=5
failing=$((deadline + 5))
limit=60

# Without limits of the launcher that stand in the way of tests; `surviving` are the options with which it lets the other
# ranks go on when one has ended. MPICH's needs more: it kills all that it started when one is killed, or ends with a status,
# and signals their groups; and UCX below it aborts a process that reads memory of one that is gone (`cma`).
apart=()
case "$("$mpirun" --version 2>&1)" in
    *'Open MPI'* | *OpenRTE*)
        export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
        launch=("$mpirun" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca oob_tcp_if_include lo)
        surviving=(--enable-recovery)
        ;;
    *HYDRA*)
        launch=("$mpirun")
        surviving=(-disable-auto-cleanup)
        apart=(setsid -w env TENSORC_TEST_STATUS=0 UCX_TLS=self,posix,sysv)
        ;;
    *)
        echo "distributed: $mpirun is neither Open MPI's launcher nor MPICH's" >&2
        exit 1
        ;;
esac

work="$(mktemp -d)"
# Processes of this script are known by it.
export TENSORC_TEST_DISTRIBUTED="$work"
checks=0

# Processes of the jobs of this script, but for the script itself.
processes() {
    grep -lzsxF "TENSORC_TEST_DISTRIBUTED=$work" /proc/[0-9]*/environ | cut -d / -f 3 | while read -r pid; do
        # Commands of this script have its variables as well.
        case "$(tr "\0" " " 2>/dev/null <"/proc/$pid/cmdline")" in
            *train_distributed* | *faulty_rank* | *closed_forms* | *hydra* | *orted*) echo "$pid" ;;
        esac
    done
}

cleanup() {
    local pid
    for pid in $(processes); do kill -KILL "$pid" 2>/dev/null || true; done
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# What a job's processes wrote.
output() { tail -n 30 "$work/$1"/* 2>/dev/null; }

fail() {
    output "$job" >&2
    echo "distributed: FAILED: $1" >&2
    exit 1
}

# The beginning of the error of a rank of the last job.
error() { grep -h '^error: ' "$work/$job/$1.err" | cut -c 1-200; }

passed() {
    checks=$((checks + 1))
    echo "distributed: $1"
}

# A rank of a job: what it writes and how it ends are kept apart from the others'.
cat >"$work/rank" <<'RANK'
#!/usr/bin/env bash
rank="${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}"
folder="$1"
shift
"$@" >"$folder/$rank.out" 2>"$folder/$rank.err" &
echo $! >"$folder/$rank.pid"
wait $!
status=$?
echo $status >"$folder/$rank.status"
exit "${TENSORC_TEST_STATUS:-$status}"
RANK
chmod +x "$work/rank"

# Waits until no process of a job is left.
gone() {
    local i
    for ((i = 0; i < 50; i++)); do
        [ -n "$(processes)" ] || return 0
        sleep 0.1
    done
    ps -o pid,stat,args -p "$(processes | paste -sd ,)" >&2 || true
    fail "$1 left processes behind"
}

# launched JOB ARGUMENT…: starts a job in the background: arguments of the launcher, behind its `options`. `each` is what
# starts a rank.
options=()
each=("$work/rank")
launched() {
    job="$1" begun=$SECONDS
    shift
    timeout -k 5 $limit "${launch[@]}" "${options[@]}" "$@" </dev/null >"$work/$job/launcher" 2>&1 &
    launcher=$!
}

# start JOB RANKS ARGUMENT…: ranks that all have the same arguments.
start() {
    local name="$1" ranks="$2"
    shift 2
    mkdir "$work/$name"
    launched "$name" -n "$ranks" "${each[@]}" "$work/$name" "$program" "$@"
}

# train JOB RANKS ARGUMENT…: a job that must end well. $digest is that of its parameters.
train() {
    start "$@"
    wait $launcher || fail "$* ended with status $?"
    gone "$1"
    [ -z "$(cat "$work/$1"/*.err)" ] || fail "$*: ranks wrote errors"
    digest="$(sed -n 's/.* right, parameters \([0-9a-f]*\)$/\1/p' "$work/$1"/*.out)"
    [[ "$digest" =~ ^[0-9a-f]{16}$ ]] || fail "$*: one result of rank 0 is expected"
    accuracy="$(sed -n 's/ of the held-out digits right.*//p' "$work/$1/0.out")"
}

# reached JOB EPOCH: waits until rank 0 has trained so many epochs.
reached() {
    local i
    for ((i = 0; i < limit * 20; i++)); do
        ! grep -q "^epoch $2:" "$work/$1/0.out" 2>/dev/null || return 0
        sleep 0.05
    done
    fail "$1 does not come to epoch $2"
}

# ended JOB RANK…: waits until ranks have ended, by themselves, each with one error of the library.
ended() {
    local rank since=$SECONDS of="$1" pattern
    shift
    pattern='^error: rank [0-9]+: .*(has waited|reported by rank|calls|has left|is closed|rank [0-9]+: MPI_)'
    for rank; do
        until [ -s "$work/$of/$rank.status" ]; do
            [ $((SECONDS - since)) -le $failing ] || fail "$of: rank $rank goes on"
            sleep 0.05
        done
        [ "$(cat "$work/$of/$rank.status")" = 1 ] || fail "$of: rank $rank ended with $(cat "$work/$of/$rank.status")"
        # Open MPI writes lines of its own, `[machine:process] …`.
        [ "$(grep -cv '^\[[^]]*:[0-9]*\] ' "$work/$of/$rank.err")" = 1 ] || fail "$of: rank $rank wrote more than an error"
        grep -qE "$pattern" "$work/$of/$rank.err" || fail "$of: rank $rank wrote another error"
    done
}

# finished JOB: the launcher itself must end, with a failure; there is none with the options `surviving`.
finished() {
    local status=0
    wait $launcher || status=$?
    [ $((SECONDS - begun)) -lt $limit ] || fail "$1: the launcher had to be ended"
    [ $status != 0 ] || [ ${#options[@]} != 0 ] || fail "$1: the launcher ended well"
    gone "$1"
}

# equal NAME EXPECTED: compares the digest of the last job.
equal() {
    [ "$digest" = "$2" ] || fail "$1: parameters $digest, expected $2"
    passed "$1: parameters $digest"
}

# Stores whose sums are known, with one to four ranks.
closed_forms() {
    local kind ranks
    for kind in dist_sync dist_device_sync; do
        for ranks in 1 2 3 4; do
            local name="forms-$kind-$ranks"
            mkdir "$work/$name"
            launched "$name" -n "$ranks" "${each[@]}" "$work/$name" "$folder/closed_forms" "$kind"
            wait $launcher || fail "$name ended with status $?"
            gone "$name"
            [ -s "$work/$name/0.out" ] || fail "$name has no result"
            passed "closed forms, $kind, $ranks ranks: $(cat "$work/$name/0.out")"
        done
    done
}

same_bits() {
    local network="$1" expected
    shift
    train "$network-alone" 1 --network "$network" --micro-batches 4 "$@"
    expected="$digest"
    passed "$network, one process, 4 micro-batches: parameters $digest, $accuracy"
    for ranks in 1 2 4; do
        train "$network-$ranks" $ranks --network "$network" --kv-store dist_sync --micro-batches 4 "$@"
        equal "$network, dist_sync, $ranks ranks, 4 micro-batches" "$expected"
    done
    train "$network-devices" 2 --network "$network" --kv-store dist_device_sync --micro-batches 4 --devices 2 "$@"
    equal "$network, dist_device_sync, 2 ranks with 2 devices, 4 micro-batches" "$expected"
}

# Rates and thresholds are those with which each learns; codes of few bits and gradients that come late take longer.
stores() {
    local kind compression
    for kind in local device; do
        train "$kind" 1 --kv-store $kind --devices 2
        passed "$kind, 2 devices: $accuracy"
    done
    for kind in dist_sync dist_device_sync; do
        train "$kind" 2 --kv-store $kind
        passed "$kind, 2 ranks: $accuracy"
    done
    train dist_async 2 --kv-store dist_async --rate 0.01 --enough 0.88
    passed "dist_async, 2 ranks: $accuracy"
    for compression in '2bit --threshold 2 --rate 0.01' '1bit --rate 0.01' fp16 bf16; do
        # shellcheck disable=SC2086
        train "compressed-${compression%% *}" 2 --kv-store dist_sync --enough 0.88 --compression $compression
        passed "dist_sync, 2 ranks, $compression: $accuracy"
    done
}

# endless JOB: training that ends only by a failure.
endless() { start "$1" 4 --kv-store dist_sync --network mlp --epochs 100000 --deadline $deadline; }

signal() { kill -s "$2" "$(cat "$work/$job/$1.pid")"; }

failures() {
    options=("${surviving[@]}") each=("${apart[@]}" "$work/rank")
    endless killed
    reached killed 1
    signal 2 KILL
    ended killed 0 1 3
    finished killed
    passed "a rank is killed, the others are let go on: $(error 0)"

    endless stopped
    reached stopped 1
    signal 1 STOP
    ended stopped 0 2 3
    passed "a rank is stopped: $(error 0)"
    signal 1 CONT
    ended stopped 1
    finished stopped
    passed "… and goes on when the others have ended: $(error 1)"

    # Batches of other sizes: 23 an epoch for all ranks but the last, and 24 for that one.
    mkdir "$work/uneven"
    local common=("${each[@]}" "$work/uneven" "$program" --kv-store dist_sync --network mlp --deadline "$deadline" --batch-size)
    launched uneven -n 2 "${common[@]}" 63 : -n 1 "${common[@]}" 60
    ended uneven 0 1 2
    finished uneven
    passed "a rank has one batch more: $(error 0)"

    options=() each=("$work/rank")
    endless killed-job
    reached killed-job 1
    signal 2 KILL
    finished killed-job
    passed "a rank is killed: the launcher ends the job"
    endless stopped-job
    reached stopped-job 1
    signal 1 STOP
    finished stopped-job
    passed "a rank is stopped: the launcher ends the job when the others have waited"
}

# fault NUMBER: a rank of three is killed or stopped, has an operator that fails or an array of another shape, or leaves early;
# the others must end with one error each. Kind, rank and time are functions of the number.
fault() {
    local kinds=(killed stopped operator shape batch) hash rank step name="fault-$1" others=(0 1 2) kind
    hash="$(cksum <<<"$1")" && hash="${hash%% *}"
    kind="${kinds[$1 % 5]}" rank=$((hash % 3)) step=$((hash / 3 % 200))
    unset "others[$rank]"
    mkdir "$work/$name"
    local program=("$folder/faulty_rank" --deadline 2)
    case "$kind" in
        killed | stopped) ;;
        *) program+=(--rank "$rank" --fault "$kind" --step "$step") ;;
    esac
    launched "$name" -n 3 "${each[@]}" "$work/$name" "${program[@]}"
    case "$kind" in
        killed | stopped)
            until [ -s "$work/$name/$rank.out" ]; do
                [ $((SECONDS - begun)) -lt $limit ] || fail "$name does not begin"
                sleep 0.02
            done
            sleep "0.$(printf %03d $((step * 5)))"
            if [ "$kind" = killed ]; then signal "$rank" KILL; else signal "$rank" STOP; fi
            ;;
    esac
    ended "$name" "${others[@]}"
    [ "$kind" != stopped ] || signal "$rank" CONT
    [ "$kind" = killed ] || ended "$name" "$rank"
    finished "$name"
    kinds_of["$kind"]=$((${kinds_of["$kind"]:-0} + 1))
    rm -r "${work:?}/$name"
}

declare -A kinds_of
faults() {
    local number
    options=("${surviving[@]}") each=("${apart[@]}" "$work/rank")
    for ((number = 0; number < $1; number++)); do fault "$number"; done
    options=() each=("$work/rank")
    passed "a rank goes wrong at a random point, $1 runs:$(for kind in "${!kinds_of[@]}"; do echo " $kind ${kinds_of[$kind]}"; done | sort | tr -d "\n")"
}

# A job that is killed goes on from its last checkpoint with other numbers of ranks, to the bits of one that was not.
restarts() {
    local expected prefix="$work/digits"
    train uninterrupted 1 --kv-store dist_sync --micro-batches 4
    expected="$digest"
    start interrupted 4 --kv-store dist_sync --micro-batches 4 --epochs 1000 --checkpoint "$prefix" --deadline $deadline
    reached interrupted 2
    signal 3 KILL
    finished interrupted
    train restarted-2 2 --kv-store dist_sync --micro-batches 4 --checkpoint "$prefix" --resume 2 --epochs 4 --enough 0
    train restarted-1 1 --kv-store dist_sync --micro-batches 4 --checkpoint "$prefix" --resume 4
    equal "4 ranks, killed, then 2, then 1" "$expected"
}

if [ "${2:-}" = faults ]; then
    faults "$3"
else
    closed_forms
    if [ "${2:-}" = launcher ]; then
        same_bits lenet --epochs 1 --enough 0
    else
        same_bits lenet
        same_bits resnet --epochs 1 --enough 0
        stores
    fi
    failures
    faults 5
    restarts
fi
echo "distributed: $checks checks passed in $SECONDS s"
