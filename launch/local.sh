#!/usr/bin/env bash
# Trains in one process, without a launcher, for debugging: launch/local.sh --recipe dcgan --max-steps 500
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

use_python
exec "$python" -m hvdgan.train "$@"
