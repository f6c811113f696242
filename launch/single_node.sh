#!/usr/bin/env bash
# Starts ranks on this machine, also inside a Slurm job: launch/single_node.sh -np 4 --recipe dcgan; --help lists more.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

unset SLURM_JOB_NODELIST
launch "$@"
