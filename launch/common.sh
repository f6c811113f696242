# What the launch scripts and Slurm jobs share: options, hosts, and a launcher that is asked to stop.
# A script sources it first, and is named in its messages.
# shellcheck shell=bash disable=SC2034  # module, print, hosts, ranks and taken are for the scripts

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
script="${script:-launch/$(basename -- "$0")}"
module=hvdgan.train
print=""

# shellcheck source=launch/env.sh
source "$root/launch/env.sh"

say() { printf '%s: %s\n' "$script" "$*" >&2; }
die() { say "$*"; exit 1; }
usage_error() { say "$*; see --help"; exit 2; }

# The comment at the top of the script.
show_help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

# value OPTION [WORD ...]: the word after an option.
value() {
    [[ -n "${2:-}" && "$2" != -- ]] || usage_error "$1 needs a value"
    printf '%s' "$2"
}

# whole OPTION [WORD ...]: the same, a whole number of at least 1.
whole() {
    [[ "${2:-}" =~ ^[1-9][0-9]{0,6}$ ]] || usage_error "$1 ${2:-}: expected a whole number of at least 1"
    printf '%s' "$2"
}

# common_option WORD ...: take an option that every script has, and set taken to the words it has. Fails where the
# trainer's arguments begin.
common_option() {
    case "$1" in
        -h | --help) show_help; exit 0 ;;
        --print) print=1 taken=1 ;;
        # "|| exit": set -e does not hold in a function whose failing is asked for.
        -m) module="$(value "$@")" || exit; taken=2 ;;
        --) taken=1; return 1 ;;
        --*) taken=0; return 1 ;;
        *) usage_error "$1: unknown option; those of the trainer begin with two dashes" ;;
    esac
}

# The checkout's own .venv, unless another environment is active. Sets python to its full path, which holds on every
# host that sees the same files.
use_python() {
    local active="${VIRTUAL_ENV:-${CONDA_DEFAULT_ENV:-}}"
    if [[ -z "$active" || "$active" == base ]] && [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
    python="$(command -v python)" || die "found no python; run launch/setup.sh, or activate your environment"
}

# GPUs that a process started here would see.
count_gpus() {
    local visible="${CUDA_VISIBLE_DEVICES-all}"
    case "$visible" in
        all) timeout 30 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true ;;
        "" | -1 | NoDevFiles) echo 0 ;;
        *) tr ',' '\n' <<<"$visible" | grep -c . ;;
    esac
}

# Cores that this process may use; nproc would take OMP_NUM_THREADS for their number.
count_cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Ranks that this machine can take: one for each GPU, or for each core where there is none.
count_ranks() {
    local gpus
    gpus="$(count_gpus)"
    if ((gpus)); then echo "$gpus"; else count_cores; fi
}

# The allocation, a line HOST:SLOTS for each of its hosts.
slurm_hosts() {
    local names part times
    local -a tasks=() hosts_of_job
    command -v scontrol >/dev/null || die "SLURM_JOB_ID is set, and scontrol is not on the PATH; name the hosts with -H"
    names="$(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")" || die "scontrol does not tell the hosts of this job"
    mapfile -t hosts_of_job <<<"$names"
    # Such as 4(x2),3: four on each of the first two hosts, three on the next.
    for part in ${SLURM_TASKS_PER_NODE//,/ }; do
        times=1
        if [[ "$part" =~ ^([0-9]+)\(x([0-9]+)\)$ ]]; then part="${BASH_REMATCH[1]}" times="${BASH_REMATCH[2]}"; fi
        for ((; times > 0; times--)); do tasks+=("$part"); done
    done
    for part in "${!hosts_of_job[@]}"; do printf '%s:%s\n' "${hosts_of_job[part]}" "${tasks[part]:-1}"; done
}

# A host file, a line HOST:SLOTS for each: "host", "host:4" or "host slots=4"; # begins a comment.
hosts_of_file() {
    [[ -r "$1" ]] || usage_error "--hostfile $1: cannot be read"
    sed -E 's/#.*//; s/[[:space:]]+slots[[:space:]]*=[[:space:]]*/:/; s/[[:space:]]+$//; s/^[[:space:]]+//; /^$/d' "$1"
}

# read_hosts WHERE SLOTS WORD ...: sets hosts to HOST:SLOTS,HOST:SLOTS and ranks to the sum of the slots. A word without
# :SLOTS gets SLOTS.
read_hosts() {
    local where="$1" slots="$2" word given
    hosts="" ranks=0
    for given in "${@:3}"; do
        word="$given"
        if [[ -z "$word" ]]; then continue; fi
        if [[ "$word" != *:* ]]; then word+=":$slots"; fi
        [[ "$word" =~ ^[A-Za-z0-9_.-]+:([1-9][0-9]{0,5})$ ]] || usage_error "$where: $given is no HOST or HOST:SLOTS"
        hosts+="${hosts:+,}$word"
        ranks=$((ranks + BASH_REMATCH[1]))
    done
    ((ranks)) || usage_error "$where: names no host"
}

# host_option WORD ...: take an option that says where to start, and set taken; fails if it is none of them.
host_option() {
    case "$1" in
        -H | --hosts) where="$1" list="$(value "$@")" || exit ;;
        --hostfile) where="$1" list="$(value "$@")" || exit ;;
        --slots) slots="$(whole "$@")" || exit ;;
        -np) np="$(whole "$@")" || exit ;;
        *) return 1 ;;
    esac
    taken=2
}

# What those options come to: sets hosts, ranks and np, the processes in all.
choose_hosts() {
    local -a words
    case "${where:-}" in
        "")
            [[ -n "${SLURM_JOB_NODELIST:-}" ]] || usage_error "which hosts? -H or --hostfile, or start it in a Slurm allocation"
            where="the Slurm allocation" list="$(slurm_hosts)" ;;
        --hostfile) list="$(hosts_of_file "$list")" ;;
    esac
    IFS=$', \n' read -r -d '' -a words <<<"$list" || true
    read_hosts "$where" "${slots:-1}" "${words[@]}"
    np="${np:-$ranks}"
    ((np <= ranks)) || usage_error "-np $np: $where has $ranks slots"
}

# mpi_flavour MPIRUN: whose it is: "Open MPI 4.1.4", "MPICH 4.2.0", "Intel MPI 2021.1"; nothing where it
# does not run.
mpi_flavour() {
    local said kind=""
    said="$(timeout 30 "$1" --version 2>/dev/null)" || return 0
    case "$said" in
        *"Open MPI"* | *OpenRTE* | *"PRRTE"*) kind="Open MPI" ;;
        *MPICH* | *HYDRA*) kind=MPICH ;;
        *"Intel(R) MPI"*) kind="Intel MPI" ;;
        *) printf '%s' "${said%%$'\n'*}"; return ;;
    esac
    printf '%s %s' "$kind" "$(grep -oE '[0-9]+(\.[0-9]+)+' <<<"$said" | head -n 1)"
}

# horovodrun takes MPI wherever Horovod was built with it, and fails where that is Open MPI 5: then over Gloo, unless
# the user has said which.
choose_controller() {
    local mpi
    if [[ "$controller" == --gloo ]]; then return; fi
    mpi="$(mpi_flavour mpirun)"
    case "$controller $mpi" in
        "--mpi Open MPI "[0-4].*) ;;
        "--mpi Open MPI "*) usage_error "--mpi: horovodrun cannot drive $mpi; take --gloo, or launch/mpirun.sh" ;;
        "--mpi ") usage_error "--mpi: there is no mpirun on the PATH; take --gloo" ;;
        " Open MPI "[0-4].*) ;;
        " Open MPI "*) controller=--gloo ;;
    esac
}

# Print the command as it could be typed; with --print do no more.
show() {
    local word words=""
    for word in "$@"; do
        if [[ "$word" =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then words+=" $word"; else words+=" ${word@Q}"; fi
    done
    if [[ -n "$print" ]]; then printf '%s\n' "${words# }"; exit 0; fi
    printf '+%s\n' "$words" >&2
}

# descendants PID: the processes below it, whichever of its threads has started them.
descendants() {
    local child
    local -a below
    read -r -d '' -a below < <(cat "/proc/$1/task/"*/children 2>/dev/null) || true
    for child in "${below[@]}"; do echo "$child"; descendants "$child"; done
}

# stop_ranks PID: ask the ranks of this host that a launcher has started to save and stop; the others hear it from them.
# The launcher itself would give them 5 seconds after a SIGTERM, and die of a SIGUSR2.
stop_ranks() {
    local pid asked=0
    local -a words
    for pid in $(descendants "$1"); do
        mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline" || continue
        if [[ "${words[1]:-} ${words[2]:-}" == "-m $module" ]] && kill -USR2 "$pid" 2>/dev/null; then asked=1; fi
    done
    if ((!asked)); then kill -TERM "$1" 2>/dev/null || true; fi
}

# supervise COMMAND ...: run a launcher and exit with its code. SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C ask its ranks to save
# and stop; a second one ends the launcher.
supervise() {
    run_launcher own_session "$@"
    exit "$code"
}

own_session() {
    # Ctrl-C at the terminal must reach us alone.
    exec setsid "$@"
}

# on_signal NAME: what the launcher is told; a job script has its own.
on_signal() { if ((asked++)); then kill -TERM "$launcher" || true; else stop_ranks "$launcher"; fi; }

# heard NAME: tell the launcher of a signal, or remember it until there is one.
heard() {
    woken=1
    if [[ -n "$launcher" ]]; then on_signal "$1"; else early="$1"; fi
}

# deaf COMMAND ...: run it without it hearing the signals that are for the launcher, also where they go to all of a group.
deaf() {
    trap '' TERM INT HUP USR1 USR2
    exec "$@"
}

# run_launcher COMMAND ...: run it with on_signal for whatever signal comes, and set code to its exit code, and why_stopped
# to what rank 0 says if it was asked to stop. When ranks have stopped so, horovodrun makes 1 of their 75, and srun
# 137, since it kills the rank that is last to leave: what they say of the first one tells.
run_launcher() {
    local reader pipes name tenths
    asked=0 woken=1 why_stopped="" launcher="" early=""
    # Before it starts: a signal must not leave it running without us.
    for name in TERM INT HUP USR1 USR2; do
        # shellcheck disable=SC2064  # the name of now
        trap "heard $name" "$name"
    done
    pipes="$(mktemp -d)"
    mkfifo "$pipes/all" "$pipes/lines"
    if [[ -n "$early" ]]; then
        rm -rf "$pipes"
        exit $((128 + $(kill -l "$early")))
    fi
    deaf grep -aE '(Exit code: *|Exited with exit code )75$|stopped (after step .* and saved|before the first step)' <"$pipes/lines" \
        >"$pipes/found" &
    reader=$!
    deaf tee "$pipes/lines" <"$pipes/all" >&2 &
    "$@" 2>"$pipes/all" &
    launcher=$!
    if [[ -n "$early" ]]; then on_signal "$early"; fi
    # A signal ends the wait before the launcher has ended.
    while ((woken)); do
        woken=0 code=0
        wait "$launcher" || code=$?
    done
    # Until all is read; a process that the launcher has left behind may keep the pipe open.
    for ((tenths = 0; tenths < 100; tenths++)); do
        kill -0 "$reader" 2>/dev/null || break
        sleep 0.1
    done
    if ((code)); then
        if grep -q '75$' "$pipes/found"; then code=75; fi
        why_stopped="$(grep -aE 'stopped (after|before) ' "$pipes/found" || true)"
    fi
    rm -rf "$pipes"
}
