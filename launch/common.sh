# Shared by the launch scripts and Slurm jobs: options, hosts, running a launcher and stopping it on a signal.
# A script sources this file first; messages begin with the script's name.
# shellcheck shell=bash disable=SC2034  # module, print, hosts, ranks and taken are for the scripts

root="$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
script="${script:-launch/$(basename -- "$0")}"
module=hvdgan.train
print=""
# Command through which the launcher's output goes, to show it without the tags of ranks; empty: none.
bare=()
# What follows each of these tags.
after_tag=""

# shellcheck source=launch/env.sh
source "$root/launch/env.sh"

say() { printf '%s: %s\n' "$script" "$*" >&2; }
die() { say "$*"; exit 1; }
usage_error() { say "$*; see --help"; exit 2; }

# Print the comment at the top of the script.
show_help() { sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p}' "$0"; }

# value OPTION [WORD ...]: print the word after an option.
value() {
    [[ -n "${2:-}" && "$2" != -- ]] || usage_error "$1 needs a value"
    printf '%s' "$2"
}

# whole OPTION [WORD ...]: print the word after an option, which must be a whole number of at least 1.
whole() {
    [[ "${2:-}" =~ ^[1-9][0-9]{0,6}$ ]] || usage_error "$1 ${2:-}: expected a whole number of at least 1"
    printf '%s' "$2"
}

# common_option WORD ...: parse an option that every script has, and set taken to the number of its words. Fails at the
# first of the trainer's arguments.
common_option() {
    case "$1" in
        -h | --help) show_help; exit 0 ;;
        --print) print=1 taken=1 ;;
        # "|| exit": set -e does not apply inside a function whose exit status is tested.
        -m) module="$(value "$@")" || exit; taken=2 ;;
        --) taken=1; return 1 ;;
        --*) taken=0; return 1 ;;
        *) usage_error "$1: unknown option; the trainer's options begin with two dashes" ;;
    esac
}

# Use the checkout's own .venv, unless another environment is active. Sets python to the full path, which is valid on
# every host that sees the same files.
use_python() {
    local active="${VIRTUAL_ENV:-${CONDA_DEFAULT_ENV:-}}"
    if [[ -z "$active" || "$active" == base ]] && [[ -x "$root/.venv/bin/python" ]]; then PATH="$root/.venv/bin:$PATH"; fi
    python="$(command -v python)" || die "found no python; run launch/setup.sh, or activate your environment"
}

# Print the number of GPUs that a process started here would see. CUDA ends its list at the first name of no GPU.
count_gpus() {
    local visible="${CUDA_VISIBLE_DEVICES-all}"
    case "$visible" in
        all) timeout 30 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true ;;
        *) sed -E 's/(^|,) *(-1|NoDevFiles)(,.*)?$//' <<<"$visible" | tr ',' '\n' | grep -c . || true ;;
    esac
}

# Print the number of cores that this process may use. nproc would return OMP_NUM_THREADS if it is set.
count_cores() { env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc; }

# Print the number of ranks for this machine: one per GPU, or one per core without GPUs.
count_ranks() {
    local gpus
    gpus="$(count_gpus)"
    if ((gpus)); then echo "$gpus"; else count_cores; fi
}

# Print the Slurm allocation, one line HOST:SLOTS per host.
slurm_hosts() {
    local names part times
    local -a tasks=() hosts_of_job
    command -v scontrol >/dev/null || die "SLURM_JOB_ID is set, and scontrol is not on the PATH; name the hosts with -H"
    names="$(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")" || die "scontrol does not name the hosts of this job"
    mapfile -t hosts_of_job <<<"$names"
    # For example 4(x2),3: four tasks on each of the first two hosts, three on the next.
    for part in ${SLURM_TASKS_PER_NODE//,/ }; do
        times=1
        if [[ "$part" =~ ^([0-9]+)\(x([0-9]+)\)$ ]]; then part="${BASH_REMATCH[1]}" times="${BASH_REMATCH[2]}"; fi
        for ((; times > 0; times--)); do tasks+=("$part"); done
    done
    for part in "${!hosts_of_job[@]}"; do printf '%s:%s\n' "${hosts_of_job[part]}" "${tasks[part]:-1}"; done
}

# Print a host file, one line HOST:SLOTS per host. Its lines are "host", "host:4" or "host slots=4"; # begins a comment.
hosts_of_file() {
    [[ -r "$1" ]] || usage_error "--hostfile $1: cannot be read"
    sed -E 's/#.*//; s/[[:space:]]+slots[[:space:]]*=[[:space:]]*/:/; s/[[:space:]]+$//; s/^[[:space:]]+//; /^$/d' "$1"
}

# read_hosts WHERE SLOTS WORD ...: set hosts to HOST:SLOTS,HOST:SLOTS and ranks to the sum of the slots. SLOTS is the
# number for words without :SLOTS; WHERE is the option for error messages.
read_hosts() {
    local where="$1" slots="$2" word given
    hosts="" ranks=0
    for given in "${@:3}"; do
        word="$given"
        if [[ -z "$word" ]]; then continue; fi
        if [[ "$word" != *:* ]]; then word+=":$slots"; fi
        [[ "$word" =~ ^[A-Za-z0-9_.-]+:([1-9][0-9]{0,5})$ ]] || usage_error "$where: $given is not HOST or HOST:SLOTS"
        hosts+="${hosts:+,}$word"
        ranks=$((ranks + BASH_REMATCH[1]))
    done
    ((ranks)) || usage_error "$where: names no host"
}

# host_option WORD ...: parse an option that names hosts, and set taken. Fails for other options.
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

# Set hosts, ranks and np (the number of processes) from the options that host_option has parsed.
choose_hosts() {
    local -a words
    case "${where:-}" in
        "")
            [[ -n "${SLURM_JOB_NODELIST:-}" ]] || usage_error "no hosts: give -H or --hostfile, or start it in a Slurm allocation"
            where="the Slurm allocation" list="$(slurm_hosts)" ;;
        --hostfile) list="$(hosts_of_file "$list")" ;;
    esac
    IFS=$', \n' read -r -d '' -a words <<<"$list" || true
    read_hosts "$where" "${slots:-1}" "${words[@]}"
    np="${np:-$ranks}"
    ((np <= ranks)) || usage_error "-np $np: $where has $ranks slots"
}

# mpi_flavour MPIRUN: print its name and version, such as "Open MPI 4.1.4" or "MPICH 4.2.0"; nothing if it does not run.
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

# Whether the Horovod of $python was built without Gloo, as conda-forge's is. Gloo leaves its names in the library; only
# where they are missing Horovod itself is asked, which takes seconds. One that does not load is the trainer's to name.
lacks_gloo() {
    local libraries
    libraries="$("$python" -c 'import importlib.util as util, pathlib
print(*pathlib.Path(util.find_spec("horovod").origin).parent.glob("tensorflow/mpi_lib*.so"), sep="\n")' 2>/dev/null)" || return 1
    if [[ -z "$libraries" ]] || tr '\n' '\0' <<<"$libraries" | xargs -0 grep -qaE 'N4gloo' 2>/dev/null; then return 1; fi
    [[ "$("$python" -c 'import horovod.tensorflow as hvd; print(hvd.gloo_built())' 2>/dev/null)" == False ]]
}

# horovodrun uses MPI if Horovod was built with it, and fails with Open MPI 5. Use Gloo then, unless the user has chosen.
choose_controller() {
    local mpi
    if [[ "$controller" == --gloo ]]; then
        if lacks_gloo; then usage_error "--gloo: this Horovod was built without Gloo; leave it out, or take launch/mpirun.sh"; fi
        return
    fi
    mpi="$(mpi_flavour mpirun)"
    case "$controller $mpi" in
        "--mpi Open MPI "[0-4].*) ;;
        "--mpi Open MPI "*) usage_error "--mpi: horovodrun cannot drive $mpi; take --gloo, or launch/mpirun.sh" ;;
        "--mpi ") usage_error "--mpi: there is no mpirun on the PATH; take --gloo" ;;
        " Open MPI "[0-4].*) ;;
        " Open MPI "*)
            if lacks_gloo; then
                usage_error "horovodrun cannot drive $mpi, and this Horovod was built without Gloo; take launch/mpirun.sh"
            fi
            controller=--gloo ;;
    esac
}

# Print the command as it could be typed; with --print exit afterwards.
show() {
    local word words=""
    for word in "$@"; do
        if [[ "$word" =~ ^[A-Za-z0-9_./:=,@%+-]+$ ]]; then words+=" $word"; else words+=" ${word@Q}"; fi
    done
    if [[ -n "$print" ]]; then printf '%s\n' "${words# }"; exit 0; fi
    printf '+%s\n' "$words" >&2
}

# descendants PID: print the ids of all processes below PID, started by any of its threads.
descendants() {
    local child
    local -a below
    read -r -d '' -a below < <(cat "/proc/$1/task/"*/children 2>/dev/null) || true
    for child in "${below[@]}"; do echo "$child"; descendants "$child"; done
}

# stop_ranks PID: signal the ranks that launcher PID has started on this host to save and stop; they inform the ranks on
# other hosts. The launcher gets no signal: it would kill the ranks 5 seconds after a SIGTERM, and die of a SIGUSR2.
stop_ranks() {
    local pid asked=0
    local -a words
    for pid in $(descendants "$1"); do
        mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline" || continue
        if [[ "${words[1]:-} ${words[2]:-}" == "-m $module" ]] && kill -USR2 "$pid" 2>/dev/null; then asked=1; fi
    done
    if ((!asked)); then kill -TERM "$1" 2>/dev/null || true; fi
}

# supervise COMMAND ...: run a launcher and exit with its code. SIGTERM, SIGUSR1, SIGUSR2 and Ctrl-C make its ranks save
# and stop; a second signal ends the launcher. Rank 0's lines are shown bare, those of rank 1 as "rank 1: ...".
supervise() {
    bare=("$python" -IS "$root/launch/rank_lines.py" "$after_tag")
    run_launcher own_session "$@"
    exit "$code"
}

own_session() {
    # Ctrl-C in the terminal must reach this script only.
    exec setsid "$@"
}

# on_signal NAME: pass a signal on to the ranks. A job script has its own version.
on_signal() { if ((asked++)); then kill -TERM "$launcher" || true; else stop_ranks "$launcher"; fi; }

# heard NAME: handle a signal, or remember it until the launcher has started.
heard() {
    woken=1
    if [[ -n "$launcher" ]]; then on_signal "$1"; else early="$1"; fi
}

# deaf COMMAND ...: run it and ignore the launcher's signals, also those that are sent to the whole process group.
deaf() {
    trap '' TERM INT HUP USR1 USR2
    exec "$@"
}

# run_launcher COMMAND ...: run it and handle signals with on_signal. Sets code to its exit code, and why_stopped to
# rank 0's message if the ranks were asked to stop. If ranks leave with 75, horovodrun exits with 1, and srun with 137,
# because it kills the last rank. So the exit code of the first rank is read from their messages.
run_launcher() {
    local pipes name tenths
    local -a readers
    asked=0 woken=1 why_stopped="" launcher="" early=""
    # Set the traps before the launcher starts: a signal must not end this script and leave the launcher running.
    for name in TERM INT HUP USR1 USR2; do
        # shellcheck disable=SC2064  # expand the name now
        trap "heard $name" "$name"
    done
    pipes="$(mktemp -d)"
    mkfifo "$pipes/all" "$pipes/bare" "$pipes/lines" "$pipes/stdout"
    if [[ -n "$early" ]]; then
        rm -rf "$pipes"
        exit $((128 + $(kill -l "$early")))
    fi
    deaf grep -aE '(Exit code: *|Exited with exit code )75$|stopped (after step .* and saved|before the first step)' <"$pipes/lines" \
        >"$pipes/found" &
    readers=("$!")
    deaf tee "$pipes/lines" <"$pipes/bare" >&2 &
    readers+=("$!")
    if ((${#bare[@]})); then
        deaf "${bare[@]}" <"$pipes/all" >"$pipes/bare" &
        deaf "${bare[@]}" <"$pipes/stdout" &
        readers+=("$!")
        "$@" >"$pipes/stdout" 2>"$pipes/all" &
    else
        "$@" 2>"$pipes/bare" &
    fi
    launcher=$!
    if [[ -n "$early" ]]; then on_signal "$early"; fi
    # A signal ends the wait before the launcher ends, so wait again.
    while ((woken)); do
        woken=0 code=0
        wait "$launcher" || code=$?
    done
    # Wait until everything is read, but at most 10 s: a process that the launcher left behind may keep the pipe open.
    for ((tenths = 0; tenths < 100; tenths++)); do
        kill -0 "${readers[@]}" 2>/dev/null || break
        sleep 0.1
    done
    if ((code)); then
        if grep -q '75$' "$pipes/found"; then code=75; fi
        why_stopped="$(grep -aE 'stopped (after|before) ' "$pipes/found" || true)"
    fi
    rm -rf "$pipes"
}
