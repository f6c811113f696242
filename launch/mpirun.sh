#!/usr/bin/env bash
# Starts ranks by mpirun: launch/mpirun.sh -H node1:4,node2:4 --recipe dcgan; --help lists more.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

launch --mpi "$@"
