# Shared by the Slurm jobs of slurm/: staging data, saving on a signal, requeueing. The job script sources it in the
# checkout.
# shellcheck shell=bash

script="${SLURM_JOB_NAME:-job} ${SLURM_JOB_ID:-}"
# shellcheck source=launch/common.sh
source launch/common.sh

# Arguments that the job script adds to the trainer's.
added=() place=""

job_error() { say "$*"; exit 2; }

# everywhere SECONDS COMMAND ...: run it once on each node of the job; SECONDS: time limit, 0: none.
everywhere() {
    timeout "$1" srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "${@:2}"
}

# ours FLAG WHO WORD ...: refuse the trainer's arguments if they contain a flag that WHO sets.
ours() {
    local word
    for word in "${@:3}"; do
        word="${word%%=*}"
        [[ "${word//_/-}" != "$1" ]] || job_error "$1: $2 sets it; leave it out"
    done
}

# stage PATH WORD ...: copy a file or folder to each node's own disk, and add --data with its path there. WORD ...: the
# trainer's arguments. Does nothing if PATH is empty.
stage() {
    if [[ -z "$1" ]]; then return; fi
    ours --data STAGE_DATA "${@:2}"
    [[ -e "$1" ]] || job_error "STAGE_DATA=$1: no such file or folder"
    place="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/hvdgan-$SLURM_JOB_ID"
    trap unstage EXIT
    say "copying $1 to $place on $SLURM_JOB_NUM_NODES node(s)"
    # shellcheck disable=SC2016  # expanded by the remote shell
    everywhere 0 sh -c 'rm -rf -- "$2" && mkdir -p -- "$2" && cp -RL -- "$1" "$2"/' sh "$1" "$place" ||
        die "STAGE_DATA=$1: could not be copied to $place on every node"
    added+=(--data "$place/$(basename -- "$1")")
}

unstage() {
    # With a time limit, because srun would wait for a lost node.
    if [[ -n "$place" ]]; then everywhere 60 rm -rf -- "$place" || true; fi
    place=""
}

# take_seed FOLDER WORD ...: add the seed of this task of the array, and its own run folder in FOLDER.
take_seed() {
    ours --seed "the array" "${@:2}"
    ours --run-dir RUNS "${@:2}"
    [[ "${SLURM_ARRAY_TASK_ID:-}" =~ ^[0-9]+$ ]] || job_error "this job is not a task of an array; submit it with sbatch --array=0-4"
    added+=(--seed "$SLURM_ARRAY_TASK_ID" --run-dir "$1/seed-$SLURM_ARRAY_TASK_ID")
}

# shellcheck disable=SC2034  # gpus and seen are for the job script
# see FOLDER,FOLDER ...: set seen to the folders that a container should see, in the syntax of RUNTIME, and gpus to
# apptainer's flag for GPUs.
see() {
    local folder
    local -a folders
    seen="" gpus=()
    IFS=, read -r -a folders <<<"$(IFS=,; printf '%s' "$*")"
    for folder in "${folders[@]}"; do
        if [[ -z "$folder" ]]; then continue; fi
        if [[ "$RUNTIME" == pyxis ]]; then folder="$folder:$folder"; fi
        seen+="${seen:+,}$folder"
    done
    if (($(count_gpus))); then gpus=(--nv); fi
}

# Make the ranks save and stop. SIGTERM comes from scancel, from preemption and from scontrol requeue; Slurm itself then
# decides whether the job is requeued.
on_signal() {
    if [[ "$1" == TERM ]]; then ended_by_slurm=1; fi
    kill -USR2 "$launcher" 2>/dev/null || true
}

# run_job MAX_REQUEUES COMMAND ...: run it, and requeue the job if it stopped on request (75), at most MAX_REQUEUES
# times. Exits with the command's code.
run_job() {
    local max="$1" restarts="${SLURM_RESTART_COUNT:-0}" code how="saved and stopped"
    shift
    ended_by_slurm=0
    # In the background: bash handles a signal only after a foreground command has ended.
    run_launcher "$@"
    unstage
    if ((code != 75)); then exit "$code"; fi
    if [[ "$why_stopped" == *"before the first step"* ]]; then how="stopped before the first step"; fi
    if ((ended_by_slurm)); then
        say "$how; Slurm has ended it, so it is not requeued from here"
    elif [[ "$why_stopped" == *"/stop exists"* ]]; then
        say "$how, as the stop file asks; remove it, then the same sbatch resumes the run"
    elif ((restarts >= max)); then
        say "$how; requeued $restarts times already (MAX_REQUEUES=$max); the same sbatch resumes the run"
    else
        say "$how; requeueing, $((restarts + 1)) of at most $max times"
        trap '' TERM
        # A task of an array needs both numbers: the array's number alone would requeue all tasks.
        scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" ||
            say "scontrol requeue failed; the same sbatch resumes the run"
    fi
    exit "$code"
}
