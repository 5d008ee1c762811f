#!/usr/bin/env bash
# Sourced by the scripts beside it, in the root of the repository: installs what optional tests need, runs tests in
# parts, and says at the end what came of each part.
#
# With TENSORC_INSTALL=0 nothing is installed.

# Debian's packages for each group of tools.
declare -A packages=(
    [tools]="g++ cmake pkg-config valgrind"
    [python]="python3-pip"
    [python311]="python3-venv"
    [llvm]="llvm-22-dev libpolly-22-dev zlib1g-dev libzstd-dev libxml2-dev"
    [openmpi]="openmpi-bin libopenmpi-dev libclang-dev"
    [mpich]="mpich libmpich-dev libclang-dev"
    [chromium]="chromium"
    [cross]="gcc-aarch64-linux-gnu gcc-riscv64-linux-gnu libc6-dev-arm64-cross libc6-dev-riscv64-cross qemu-user"
)
# Targets of Rust that belong to the group `cross`.
rust_targets=(aarch64-unknown-linux-gnu riscv64gc-unknown-linux-gnu)
# Why a group that is missing was not installed.
declare -A reasons=()

# One entry for each part that ended.
names=() outcomes=() seconds=() notes=()
# The part that runs and since when; why no more parts are run.
running='' started=0 stopped=''
# The part beside it: name, output, since when, note, process.
background=()

commands() {
    local name
    for name; do command -v "$name" >/dev/null || return 1; done
}

# Whether packages are installed; true where there is no dpkg to ask.
installed() {
    local name
    commands dpkg-query || return 0
    for name; do
        [[ " $(dpkg-query -W -f '${db:Status-Status} ' "$name" 2>/dev/null)" == *" installed "* ]] || return 1
    done
}

llvm_22() {
    [ -z "${LLVM_SYS_221_PREFIX:-}" ] || return 0
    # shellcheck disable=SC2086
    commands llvm-config-22 && installed ${packages[llvm]}
}

# A Python from 3.11 on that makes environments with pip.
python_3_11() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        "$name" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || continue
        echo "$name"
        return 0
    done
    return 1
}

# Whether the library that reads C headers is there.
libclang() {
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    installed libclang-dev && [ -n "$(find /usr/lib* -maxdepth 3 -name 'libclang[.-][0-9s]*' -print -quit)" ]
}

# Whether Rust's libraries for a target are there.
has_target() { [ -d "$(rustc --print target-libdir --target "$1" 2>/dev/null)" ]; }

# Whether a group of tools is there, whoever installed it.
has() {
    case "$1" in
        tools) commands c++ cmake pkg-config valgrind ;;
        python) python3 -m pip --version >/dev/null 2>&1 ;;
        python311) python_3_11 >/dev/null ;;
        llvm) llvm_22 ;;
        openmpi) commands ompi_info mpicc mpiexec && libclang ;;
        mpich) commands mpicc.mpich mpiexec.mpich && libclang ;;
        chromium) commands chromium || commands chromium-browser || commands google-chrome ;;
        cross)
            commands aarch64-linux-gnu-gcc riscv64-linux-gnu-gcc qemu-aarch64 qemu-riscv64 &&
                [ -d /usr/aarch64-linux-gnu/include ] && [ -d /usr/riscv64-linux-gnu/include ] &&
                has_target "${rust_targets[0]}" && has_target "${rust_targets[1]}"
            ;;
    esac
}

# What a group lacks, and why it was not installed.
lack() {
    local name missing=()
    for name in ${packages[$1]}; do
        if ! commands dpkg-query || ! installed "$name"; then missing+=("$name"); fi
    done
    if [ "$1" = cross ]; then
        for name in "${rust_targets[@]}"; do
            has_target "$name" || missing+=("Rust's libraries for $name")
        done
    fi
    echo "${missing[*]:-${packages[$1]}} (${reasons[$1]:-not found})"
}

# apt LIMIT ARGUMENT…: apt-get as root, without questions, for so many seconds at most (0: for as long as it takes).
# Its output goes to $log.
apt() {
    local limit="$1" root=()
    shift
    [ "$(id -u)" = 0 ] || root=(sudo -n)
    "${root[@]}" timeout --foreground "$limit" env DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 \
        apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=120 \
        -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@" </dev/null >"$log" 2>&1
}

# The first error in $log.
first_error() { grep -m 1 '^E:' "$log" || echo "apt-get failed"; }

# Installs the packages of groups at once. A group whose packages cannot be had is left out.
apt_groups() {
    local group all=() log
    log="$(mktemp)"
    apt 180 update || true
    for group; do
        # shellcheck disable=SC2086
        if apt 60 install --simulate ${packages[$group]}; then
            # shellcheck disable=SC2206
            all+=(${packages[$group]})
        else
            reasons[$group]="$(first_error)"
        fi
    done
    if [ ${#all[@]} -gt 0 ]; then
        echo "Installing ${all[*]}"
        # Only the download may be cut short.
        if ! { apt 600 install --download-only "${all[@]}" && apt 0 install --no-download "${all[@]}"; }; then
            tail -n 20 "$log"
            for group; do reasons[$group]="${reasons[$group]:-$(first_error)}"; done
        fi
    fi
    rm "$log"
}

# Installs groups of tools, as far as they are missing and the machine allows it; never fails.
install_groups() {
    local group target reason wanted=()
    for group; do
        has "$group" || wanted+=("$group")
    done
    [ ${#wanted[@]} -gt 0 ] || return 0
    if [ "${TENSORC_INSTALL:-1}" = 0 ]; then
        reason="TENSORC_INSTALL=0"
    else
        if [[ " ${wanted[*]} " == *" cross "* ]] && commands rustup; then
            for target in "${rust_targets[@]}"; do
                has_target "$target" || rustup target add "$target" || true
            done
        fi
        if ! commands apt-get; then
            reason="there is no apt-get"
        elif [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
            reason="neither root nor sudo without a password"
        else
            apt_groups "${wanted[@]}"
            return 0
        fi
    fi
    for group in "${wanted[@]}"; do reasons[$group]="$reason"; done
}

record() {
    names+=("$1") outcomes+=("$2") seconds+=("$3") notes+=("$4")
}

# possible NAME [GROUP…]: whether a part can run: no group of tools that it needs is missing. A group that it can do
# without ends in `?`; $note then says so.
possible() {
    local name="$1" group
    shift
    note=''
    [ -z "$stopped" ] || { record "$name" skipped - "$stopped"; return 1; }
    for group; do
        has "${group%\?}" && continue
        [ "$group" != "${group%\?}" ] || { record "$name" skipped - "no $(lack "$group")"; return 1; }
        note="${note:+$note; }without $(lack "${group%\?}")"
    done
}

# ended NAME STATUS SECONDS: records what came of a part.
ended() {
    if [ "$2" = 0 ]; then record "$1" ran "$3" "$note"; else record "$1" failed "$3" "status $2${note:+; $note}"; fi
}

# part NAME FUNCTION [GROUP…]: runs a part, if it is possible. Not to be called in a condition: the shell would not stop
# the function at a failure.
part() {
    local name="$1" function="$2" note status
    shift 2
    possible "$name" "$@" || return 0
    printf '\n== %s\n' "$name"
    running="$name" started=$SECONDS
    set +e
    (
        set -euo pipefail
        "$function"
    )
    status=$?
    set -e
    running=
    ended "$name" $status $((SECONDS - started))
}

# beside NAME FUNCTION [GROUP…]: as `part`, of one that mostly waits: other parts run meanwhile, up to `joined`, which shows
# its output.
beside() {
    local name="$1" function="$2" note
    shift 2
    possible "$name" "$@" || return 0
    background=("$name" "$(mktemp)" "$SECONDS" "$note")
    # A process group of its own can be stopped as a whole.
    set -m
    (
        set -euo pipefail
        trap 'printf "\n%s\n" $SECONDS' EXIT
        "$function"
    ) >"${background[1]}" 2>&1 </dev/null &
    set +m
    background+=($!)
}

joined() {
    [ ${#background[@]} != 0 ] || return 0
    local name="${background[0]}" log="${background[1]}" note="${background[3]}" status=0 last
    running="$name" started="${background[2]}"
    wait "${background[4]}" || status=$?
    background=() running=
    # The last line is the time of the end.
    last="$(tail -n 1 "$log")"
    printf '\n== %s\n' "$name"
    head -n -1 "$log"
    rm "$log"
    ended "$name" $status $((last - started))
}

# A part without which the others make no sense.
essential() {
    part "$@"
    [ "${outcomes[-1]}" != failed ] || stopped="behind a failure: $1"
}

# For the trap on EXIT: prints what came of every part. The script fails if one of them did.
summary() {
    local status=$? i
    declare -A count=([ran]=0 [failed]=0 [skipped]=0)
    [ -z "$running" ] || record "$running" failed $((SECONDS - started)) interrupted
    if [ ${#background[@]} != 0 ]; then
        kill -TERM -- "-${background[4]}" 2>/dev/null || true
        record "${background[0]}" failed $((SECONDS - background[2])) interrupted
    fi
    printf '\n%-26s%-9s%8s\n' part outcome seconds
    for i in "${!names[@]}"; do
        printf '%-26s%-9s%8s%s\n' "${names[i]}" "${outcomes[i]}" "${seconds[i]}" "${notes[i]:+  ${notes[i]}}"
        count[${outcomes[i]}]=$((count[${outcomes[i]}] + 1))
    done
    printf '%-26s%-9s%8s\n' 'all, with installing' '' "$SECONDS"
    echo "${count[ran]} passed, ${count[failed]} failed, ${count[skipped]} skipped"
    [ "${count[failed]}" = 0 ] || status=$((status > 0 ? status : 1))
    exit "$status"
}
