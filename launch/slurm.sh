# What the Slurm jobs of slurm/ share: staging, the wish to stop, and going on after it; sourced by the job script, in
# the checkout.
# shellcheck shell=bash

script="${SLURM_JOB_NAME:-job} ${SLURM_JOB_ID:-}"
# shellcheck source=launch/common.sh
source launch/common.sh

# What the job script adds to the trainer's arguments.
added=() place=""

job_error() { say "$*"; exit 2; }

# everywhere SECONDS COMMAND ...: run it once on each node of the job; 0 seconds: without a bound.
everywhere() {
    timeout "$1" srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "${@:2}"
}

# ours FLAG WHO WORD ...: refuse the trainer's arguments where they have a flag that WHO sets.
ours() {
    local word
    for word in "${@:3}"; do
        word="${word%%=*}"
        [[ "${word//_/-}" != "$1" ]] || job_error "$1: $2 sets it; leave it out"
    done
}

# stage PATH WORD ...: copy a file or folder to each node's own disk, and add the argument that names it there to those
# of the trainer (WORD ...). Nothing where PATH is empty.
stage() {
    if [[ -z "$1" ]]; then return; fi
    ours --data STAGE_DATA "${@:2}"
    [[ -e "$1" ]] || job_error "STAGE_DATA=$1: no such file or folder"
    place="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/hvdgan-$SLURM_JOB_ID"
    trap unstage EXIT
    say "copying $1 to $place on $SLURM_JOB_NUM_NODES node(s)"
    # shellcheck disable=SC2016  # for the shell over there
    everywhere 0 sh -c 'rm -rf -- "$2" && mkdir -p -- "$2" && cp -RL -- "$1" "$2"/' sh "$1" "$place" ||
        die "STAGE_DATA=$1: could not be copied to $place on every node"
    added+=(--data "$place/$(basename -- "$1")")
}

unstage() {
    # A node that is lost would be waited for.
    if [[ -n "$place" ]]; then everywhere 60 rm -rf -- "$place" || true; fi
    place=""
}

# take_seed FOLDER WORD ...: the seed of this task of the array, and a run folder of its own.
take_seed() {
    ours --seed "the array" "${@:2}"
    ours --run-dir RUNS "${@:2}"
    [[ "${SLURM_ARRAY_TASK_ID:-}" =~ ^[0-9]+$ ]] || job_error "this job is no task of an array; sbatch --array=0-4 makes it one"
    added+=(--seed "$SLURM_ARRAY_TASK_ID" --run-dir "$1/seed-$SLURM_ARRAY_TASK_ID")
}

# shellcheck disable=SC2034  # gpus and seen are for the job script
# see FOLDER,FOLDER ...: set seen to the folders that a container should see, as RUNTIME takes them, and gpus to what
# apptainer needs for the GPUs.
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

# What a job does with a signal: the ranks are asked to save and stop. SIGTERM comes from scancel, from preemption and from
# scontrol requeue, where Slurm itself knows whether the job is to come back.
on_signal() {
    if [[ "$1" == TERM ]]; then ended_by_slurm=1; fi
    kill -USR2 "$launcher" 2>/dev/null || true
}

# run_job MAX_REQUEUES COMMAND ...: run it; if it stopped as it was asked to (75) the job goes back into the queue, MAX_REQUEUES
# times at most. Exits with the command's code.
run_job() {
    local max="$1" restarts="${SLURM_RESTART_COUNT:-0}" code how="saved and stopped"
    shift
    ended_by_slurm=0
    # In the background and waited for: bash would look at a signal only after a command in the foreground.
    run_launcher "$@"
    unstage
    if ((code != 75)); then exit "$code"; fi
    if [[ "$why_stopped" == *"before the first step"* ]]; then how="stopped before the first step"; fi
    if ((ended_by_slurm)); then
        say "$how; Slurm has ended it, so it is not requeued from here"
    elif [[ "$why_stopped" == *"/stop is there"* ]]; then
        say "$how, as the stop file asks; remove it, and the same sbatch goes on"
    elif ((restarts >= max)); then
        say "$how; requeued $restarts times already (MAX_REQUEUES=$max), the same sbatch goes on"
    else
        say "$how; requeueing, $((restarts + 1)) of at most $max times"
        trap '' TERM
        # A task of an array by both numbers: the number of the first one alone would requeue them all.
        scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" ||
            say "scontrol requeue failed; the same sbatch goes on"
    fi
    exit "$code"
}
