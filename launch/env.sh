# What the launch scripts and Slurm jobs set for the processes they start; sourced by launch/common.sh.
# Whatever is set already stays as it is, also where it is set to nothing.
# shellcheck shell=bash

default() {
    if [[ -z "${!1+set}" ]]; then export "$1=$2"; fi
}

# horovodrun loads TensorFlow as well, which then greets; 0 brings its messages back.
default TF_CPP_MIN_LOG_LEVEL 2

# What a rank prints reaches the job's log when it is printed, and not only when a buffer is full or never at all.
default PYTHONUNBUFFERED 1

# Seconds that horovodrun gives all hosts to answer. Its own 30 are few where Python comes from a shared file system.
default HOROVOD_START_TIMEOUT 300

# Seconds that a rank waits for the others to join over Gloo. Its own 30 are few for the same reason; elastic training
# joins anew after every change of hosts.
default HOROVOD_GLOO_TIMEOUT_SECONDS 300

# NCCL says in one line what failed; without it only that something did. INFO shows which network it took.
default NCCL_DEBUG WARN

# Since Slurm 22.05 srun no longer takes over --cpus-per-task from sbatch: every rank would be bound to one core.
if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then default SRUN_CPUS_PER_TASK "$SLURM_CPUS_PER_TASK"; fi

# The InfiniBand transport of Open MPI before UCX: it warns on every rank where there are cards, and is of no use.
default OMPI_MCA_btl ^openib
