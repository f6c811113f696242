# Environment of the processes that the launch scripts and Slurm jobs start; launch/common.sh sources it.
# A variable that is already set stays, even if it is empty.
# shellcheck shell=bash

default() {
    if [[ -z "${!1+set}" ]]; then export "$1=$2"; fi
}

# horovodrun loads TensorFlow, which would print its messages; 0 shows them again.
default TF_CPP_MIN_LOG_LEVEL 2

# A rank's output reaches the job's log at once, and not when a buffer is full.
default PYTHONUNBUFFERED 1

# Seconds that horovodrun waits for all hosts to answer. Its default of 30 is short if Python is on a shared file system.
default HOROVOD_START_TIMEOUT 300

# Seconds that a rank waits for the others to join over Gloo. The default of 30 is short for the same reason; an elastic
# run joins again after every change of hosts.
default HOROVOD_GLOO_TIMEOUT_SECONDS 300

# NCCL prints one line about a failure; without it the cause is missing. INFO also shows which network NCCL uses.
default NCCL_DEBUG WARN

# Since Slurm 22.05 srun does not inherit --cpus-per-task from sbatch: every rank would be bound to one core.
if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then default SRUN_CPUS_PER_TASK "$SLURM_CPUS_PER_TASK"; fi

# Exclude openib, Open MPI's InfiniBand transport before UCX: it warns on every rank with a card, and is not needed.
default OMPI_MCA_btl ^openib
