#!/usr/bin/env bash
# usage: launch/single_node.sh [-np N] [--gloo | --mpi] [--print] [-m MODULE] [TRAINER ARGUMENTS ...]
#
# Starts several processes on this machine, by horovodrun.
#
#   launch/single_node.sh -np 4 --recipe dcgan --global-batch-size 256
#
#   -np N       processes (default: one per GPU; without GPUs one per core)
#   --gloo      use Gloo                 (default: MPI, if Horovod was built with it and horovodrun can drive the MPI on
#   --mpi       use MPI                  the PATH; otherwise Gloo)
#   --print     print the command and do nothing
#   -m MODULE   module to run instead of hvdgan.train
#   --          end of these options: launch/single_node.sh -np 1 -- --help shows the trainer's help
#   --help      this text
#
# SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second signal ends them at once.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

ranks="" controller=""
while (($#)); do
    case "$1" in
        -np) ranks="$(whole "$@")" taken=2 ;;
        --gloo | --mpi) controller="$1" taken=1 ;;
        *) common_option "$@" || { shift "$taken"; break; } ;;
    esac
    shift "$taken"
done
use_python
choose_controller
command=(horovodrun ${controller:+"$controller"} -np "${ranks:-$(count_ranks)}" "$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
