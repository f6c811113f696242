#!/usr/bin/env bash
# usage: benchmarks/gpu.sh [--out DIR] [--only PART,...] [--recipe NAME,...] [--cpu] [--quick] [more]
#
# Checks hvdgan on the GPUs of this machine, or of a Slurm allocation, and measures it. A part that fails does not stop
# the later ones, and each result is written at once: results.jsonl and page.md, to send to the project.
#
#   HVDGAN_GPU=1 make setup && benchmarks/gpu.sh
#   benchmarks/gpu.sh --time-budget 480 --timeout 120    # on a machine that is gone after ten minutes
#   sbatch --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --cpus-per-task=8 --wrap benchmarks/gpu.sh
#
#   --out DIR            new folder for the results, logs and runs (default: gpu-TIME)
#   --only PART,...      parts to run: build, arithmetic, demo, first_steps, equality, resume, tests, speed, bench, recipes (default:
#                        all); if one of the first two fails the others are not run
#   --recipe NAME,...    recipes to train in the part recipes (default: all)
#   --precision NAME,... precisions: float32, mixed_bfloat16, mixed_float16 (default: all)
#   --timeout SECONDS    time limit of each command (default: 3600)
#   --time-budget SECONDS
#                        time after which no command is started; what was not run is named (default: no limit)
#   --cpu                do all of it on the CPU with small networks, to test this script
#   --quick              few steps of everything, with small networks
#   --help               this text
#
# It uses the active environment, .venv, or the python of the PATH; no network. PyTorch has an environment of its own, which
# HVDGAN_GPU=1 benchmarks/peers/setup.sh makes; without it the part speed leaves it out. Inside a Slurm allocation srun
# starts the ranks (SRUN_MPI, default pmix), with LAUNCHER=gloo or mpi hvdgan launch.
# Exit codes: 0 all that ran passed, 1 something failed, 2 a mistake on the command line, or no GPU, 130 interrupted.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../launch/common.sh"

for word in "$@"; do
    if [[ "$word" == --help || "$word" == -h ]]; then sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit; fi
done
use_python
export PYTHONPATH="$root/benchmarks:$root${PYTHONPATH:+:$PYTHONPATH}"
if ! why="$("$python" -c 'import gpu.__main__' 2>&1)"; then
    echo "benchmarks/gpu.sh: $python: ${why##*$'\n'}; activate an environment with hvdgan and Horovod, or run HVDGAN_GPU=1 make setup" >&2
    exit 2
fi
exec "$python" -m gpu "$@"
