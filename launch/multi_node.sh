#!/usr/bin/env bash
# usage: launch/multi_node.sh [-H HOST:SLOTS,... | --hostfile FILE] [-np N] [--gloo | --mpi] [more] [TRAINER ARGUMENTS ...]
#
# Starts processes on several machines, by horovodrun: over ssh without a password, or with --mpi through mpirun.
# All hosts must see this checkout, its .venv and the run folder under the same path.
#
#   launch/multi_node.sh -H node1:4,node2:4 --recipe dcgan --global-batch-size 512
#
#   -H, --hosts HOST:SLOTS,...   hosts with their numbers of processes (default: the Slurm allocation)
#   --hostfile FILE              the same in a file, one host per line: "host slots=4", "host:4" or "host"
#   --slots N                    processes on hosts without SLOTS (default: 1)
#   -np N                        processes in total (default: all slots)
#   --gloo, --mpi                controller (default: MPI, if Horovod was built with it and horovodrun can drive the MPI on
#                                the PATH; otherwise Gloo)
#   --interface NAME,...         network interfaces (default: those that horovodrun finds on all hosts)
#   --ssh-port N, --ssh-identity FILE
#   --print                      print the command and do nothing
#   -m MODULE                    module to run instead of hvdgan.train
#   --                           end of these options
#   --help                       this text
#
# horovodrun puts the whole environment on ssh's command line, where others can read it: keep secrets in files.
# SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second signal ends them at once.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

controller=""
options=()
while (($#)); do
    case "$1" in
        --gloo | --mpi) controller="$1" taken=1 ;;
        --interface) options+=(--network-interfaces "$(value "$@")") taken=2 ;;
        --ssh-port) options+=(--ssh-port "$(whole "$@")") taken=2 ;;
        --ssh-identity) options+=(--ssh-identity-file "$(value "$@")") taken=2 ;;
        *) host_option "$@" || common_option "$@" || { shift "$taken"; break; } ;;
    esac
    shift "$taken"
done
choose_hosts
use_python
choose_controller
# No cache: a host that answered half an hour ago may be gone now.
command=(horovodrun ${controller:+"$controller"} -np "$np" -H "$hosts" --disable-cache "${options[@]}"
    "$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
