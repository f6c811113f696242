#!/usr/bin/env bash
# Train a DCGAN on real handwritten digits with two processes; further arguments go to the trainer.
# Environment variables: RUN_DIR (default: runs/demo), RANKS (2), CONTROLLER (gloo or mpi; default: mpi where it is there).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run_dir="${RUN_DIR:-runs/demo}"
# This checkout's own Python, also in another active environment.
if [[ -x .venv/bin/python ]]; then export VIRTUAL_ENV="$PWD/.venv" PATH="$PWD/.venv/bin:$PATH"; fi

launch/single_node.sh ${CONTROLLER:+"--$CONTROLLER"} -np "${RANKS:-2}" -- \
  --recipe dcgan --data digits --nf 32 --learning-rate 5e-4 --steps 900 --run-dir "$run_dir" "$@"

samples=("$run_dir"/samples/step-*.png)
echo
echo "run folder: $run_dir"
echo "look at:    ${samples[-1]} (drawn by the generator; $run_dir/samples/real.png shows real digits)"
