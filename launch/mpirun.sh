#!/usr/bin/env bash
# usage: launch/mpirun.sh [-H HOST:SLOTS,... | --hostfile FILE] [-np N] [more] [TRAINER ARGUMENTS ...]
#
# Starts processes on one or several machines, by the mpirun of Open MPI 4, Open MPI 5 or MPICH, each with its own flags.
# Horovod must have been built with that MPI. Use it if horovodrun cannot drive your MPI, such as Open MPI 5.
#
#   launch/mpirun.sh -np 4 --recipe dcgan --global-batch-size 256
#   launch/mpirun.sh -H node1:4,node2:4 --recipe dcgan --global-batch-size 512
#
#   -H, --hosts HOST:SLOTS,...   hosts with their numbers of processes (default: the Slurm allocation; otherwise this
#                                machine with one process per GPU, or one per core without GPUs)
#   --hostfile FILE              the same in a file, one host per line: "host slots=4", "host:4" or "host"
#   --slots N                    processes on hosts without SLOTS (default: 1)
#   -np N                        processes in total (default: all slots)
#   --print                      print the command and do nothing
#   -m MODULE                    module to run instead of hvdgan.train
#   --                           end of these options
#   --help                       this text
#
# MPIRUN=/path/to/mpirun names an mpirun outside the PATH. Put your own settings into the environment:
# OMPI_MCA_btl_tcp_if_include=eth0, UCX_NET_DEVICES=..., NCCL_SOCKET_IFNAME=... are passed to the ranks.
# SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second signal ends them at once.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# Print the variables that ranks on other hosts need. mpirun passes its own OMPI_MCA_ variables itself.
exported() {
    compgen -e | grep -E "^(PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR|(PYTHON|HOROVOD_|HVDGAN_|NCCL_|TF_|CUDA_|XLA_|\
KERAS_|OMP_|UCX_|FI_|MPIR_CVAR_).*)$" | sort
}

while (($#)); do
    host_option "$@" || common_option "$@" || { shift "$taken"; break; }
    shift "$taken"
done
if [[ -z "${where:-}${SLURM_JOB_NODELIST:-}" ]]; then
    # Name the slots: by default Open MPI has one slot per core, and refuses more processes.
    np="${np:-$(count_ranks)}"
    hosts="localhost:$np"
else
    choose_hosts
fi
use_python
mpirun="${MPIRUN:-mpirun}"
flavour="$(mpi_flavour "$mpirun")"
# No binding: mpirun would bind each of one or two ranks to a single core. The trainer gives TensorFlow's threads their
# share of the host's cores.
case "$flavour" in
    "Open MPI "[45].*)
        # Open MPI 5 does not accept long options with one dash.
        command=("$mpirun" -np "$np" -H "$hosts" --map-by slot --bind-to none)
        # If ranks use all cores, polling takes time from the step.
        if (($(count_gpus) == 0)); then default OMPI_MCA_mpi_yield_when_idle 1; fi
        for name in $(exported); do command+=(-x "$name"); done
        if [[ "$flavour" == "Open MPI 4."* ]]; then command+=(--tag-output); else command+=(--output tag) after_tag=" "; fi
        ;;
    "MPICH "*)
        if (($(count_gpus) == 0)); then default MPIR_CVAR_POLLS_BEFORE_YIELD 1; fi
        names="$(exported)"
        command=("$mpirun" -n "$np" -hosts "$hosts" -bind-to none -genvlist "${names//$'\n'/,}" \
            -prepend-pattern '[%r]<stdout>:')
        ;;
    "") usage_error "$mpirun is missing or does not run; launch/single_node.sh and launch/multi_node.sh need no MPI" ;;
    *) usage_error "$mpirun says it is $flavour; expected Open MPI 4, Open MPI 5 or MPICH" ;;
esac
command+=("$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
