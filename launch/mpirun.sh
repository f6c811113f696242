#!/usr/bin/env bash
# usage: launch/mpirun.sh [-H HOST:SLOTS,... | --hostfile FILE] [-np N] [more] [TRAINER ARGUMENTS ...]
#
# Processes on one or several machines, by the mpirun of Open MPI 4, Open MPI 5 or MPICH, each with the flags it takes.
# Horovod must have been built with that MPI. It is the way where horovodrun cannot drive the MPI there is: Open MPI 5.
#
#   launch/mpirun.sh -np 4 --recipe dcgan --global-batch-size 256
#   launch/mpirun.sh -H node1:4,node2:4 --recipe dcgan --global-batch-size 512
#
#   -H, --hosts HOST:SLOTS,...   hosts and how many processes each may have (default: the Slurm allocation, else this
#                                machine with one for each GPU, or for each core where there is none)
#   --hostfile FILE              the same from a file: "host slots=4", "host:4" or "host" in a line
#   --slots N                    processes on hosts that say no SLOTS (default: 1)
#   -np N                        processes in all (default: all slots)
#   --print                      print the command and do nothing
#   -m MODULE                    another module than hvdgan.train
#   --                           ends these options
#   --help                       this text
#
# MPIRUN=/path/to/mpirun names another than the one on the PATH. Settings of your own go into the environment:
# OMPI_MCA_btl_tcp_if_include=eth0, UCX_NET_DEVICES=..., NCCL_SOCKET_IFNAME=... are passed on.
# SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second one ends them at once.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# What ranks on other hosts need of this environment; mpirun passes on its own OMPI_MCA_ by itself.
exported() {
    compgen -e | grep -E "^(PATH|LD_LIBRARY_PATH|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR|(PYTHON|HOROVOD_|HVDGAN_|NCCL_|TF_|CUDA_|XLA_|\
KERAS_|OMP_|UCX_|FI_|MPIR_CVAR_).*)$" | sort
}

while (($#)); do
    host_option "$@" || common_option "$@" || { shift "$taken"; break; }
    shift "$taken"
done
if [[ -z "${where:-}${SLURM_JOB_NODELIST:-}" ]]; then
    # Named, since Open MPI has as many slots as cores otherwise, and refuses more.
    np="${np:-$(count_ranks)}"
    hosts="localhost:$np"
else
    choose_hosts
fi
use_python
mpirun="${MPIRUN:-mpirun}"
flavour="$(mpi_flavour "$mpirun")"
# No binding: mpirun would bind each of one or two ranks to a single core. TensorFlow's threads get their share of the
# host's cores from the trainer.
case "$flavour" in
    "Open MPI "[45].*)
        # Open MPI 5 knows no long option with one dash.
        command=("$mpirun" -np "$np" -H "$hosts" --map-by slot --bind-to none)
        # Where ranks own all the cores, waiting by polling takes time from the step.
        if (($(count_gpus) == 0)); then default OMPI_MCA_mpi_yield_when_idle 1; fi
        for name in $(exported); do command+=(-x "$name"); done
        ;;
    "MPICH "*)
        if (($(count_gpus) == 0)); then default MPIR_CVAR_POLLS_BEFORE_YIELD 1; fi
        names="$(exported)"
        command=("$mpirun" -n "$np" -hosts "$hosts" -bind-to none -genvlist "${names//$'\n'/,}")
        ;;
    "") usage_error "there is no $mpirun that runs; launch/single_node.sh and launch/multi_node.sh need no MPI" ;;
    *) usage_error "$mpirun says it is $flavour; expected Open MPI 4, Open MPI 5 or MPICH" ;;
esac
command+=("$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
