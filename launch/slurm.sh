# What the Slurm jobs of slurm/ share: staging, the wish to stop, and going on after it; sourced by the job script, in
# the checkout.
# shellcheck shell=bash

script="${SLURM_JOB_NAME:-job} ${SLURM_JOB_ID:-}"
# shellcheck source=launch/common.sh
source launch/common.sh
use_python

job_error() { say "$*"; exit 2; }

everywhere() { srun --mpi=none --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 "$@"; }

# shellcheck disable=SC2034  # staged is for the job script
# stage PATH: copy a file or folder to each node's own disk, and set staged to the arguments that name it there. Nothing
# where PATH is empty.
stage() {
    staged=() place=""
    if [[ -z "$1" ]]; then return; fi
    [[ -e "$1" ]] || job_error "STAGE_DATA=$1: no such file or folder"
    place="${SLURM_TMPDIR:-${TMPDIR:-/tmp}}/hvdgan-$SLURM_JOB_ID"
    trap unstage EXIT
    say "copying $1 to $place on $SLURM_JOB_NUM_NODES node(s)"
    # shellcheck disable=SC2016  # for the shell over there
    everywhere sh -c 'rm -rf -- "$2" && mkdir -p -- "$2" && cp -RL -- "$1" "$2"/' sh "$1" "$place" ||
        die "STAGE_DATA=$1: could not be copied to $place on every node"
    staged=(--data "$place/$(basename -- "$1")")
}

unstage() {
    if [[ -n "$place" ]]; then everywhere rm -rf -- "$place" || true; fi
    place=""
}

# What a job does with a signal: the ranks are asked to save and stop. SIGTERM comes from scancel, from preemption and from
# scontrol requeue, where Slurm itself knows whether the job is to come back.
on_signal() {
    if [[ "$1" == TERM ]]; then ended_by_slurm=1; fi
    kill -USR2 "$launcher" 2>/dev/null || true
}

# run_job MAX_REQUEUES COMMAND ...: run it; if it saved and stopped (75) the job goes back into the queue, MAX_REQUEUES
# times at most. Exits with the command's code.
run_job() {
    local max="$1" restarts="${SLURM_RESTART_COUNT:-0}" code
    shift
    ended_by_slurm=0
    # In the background and waited for: bash would look at a signal only after a command in the foreground.
    run_launcher "$@"
    unstage
    if ((code != 75)); then exit "$code"; fi
    if ((ended_by_slurm)); then
        say "saved and stopped; Slurm has ended it, so it is not requeued from here"
    elif [[ "$why_stopped" == *"/stop is there"* ]]; then
        say "saved and stopped, as the stop file asks; remove it, and the same sbatch goes on"
    elif ((restarts >= max)); then
        say "saved and stopped; requeued $restarts times already (MAX_REQUEUES=$max), the same sbatch goes on"
    else
        say "saved and stopped; requeueing, $((restarts + 1)) of at most $max times"
        trap '' TERM
        # A task of an array by both numbers: the number of the first one alone would requeue them all.
        scontrol requeue "${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_}${SLURM_ARRAY_TASK_ID:-$SLURM_JOB_ID}" ||
            say "scontrol requeue failed; the same sbatch goes on"
    fi
    exit "$code"
}
