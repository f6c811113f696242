#!/usr/bin/env bash
# Train a DCGAN on real handwritten digits with two processes; further arguments go to the trainer.
# Environment variables: RUN_DIR (default: runs/demo), RANKS (2), CONTROLLER (gloo or mpi; default: horovodrun's choice).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run_dir="${RUN_DIR:-runs/demo}"
export PATH="$PWD/.venv/bin:$PATH"
# horovodrun loads TensorFlow too, which would print its messages.
export TF_CPP_MIN_LOG_LEVEL="${TF_CPP_MIN_LOG_LEVEL:-2}"

command=(horovodrun ${CONTROLLER:+"--$CONTROLLER"} -np "${RANKS:-2}"
  python -m hvdgan.train --recipe dcgan --data digits --nf 32 --learning-rate 5e-4 --steps 1600
  --run-dir "$run_dir" "$@")
echo "${command[*]}"
"${command[@]}"

samples=("$run_dir"/samples/step-*.png)
echo
echo "run folder: $run_dir"
echo "look at:    ${samples[-1]} (drawn by the generator; $run_dir/samples/real.png shows real digits)"
