#!/usr/bin/env bash
# usage: launch/local.sh [--print] [-m MODULE] [TRAINER ARGUMENTS ...]
#
# Starts one process on this machine, without a launcher, for debugging. It uses a GPU if it sees one.
#
#   launch/local.sh --recipe dcgan --max-steps 500
#
#   --print     print the command and do nothing
#   -m MODULE   module to run instead of hvdgan.train
#   --          end of these options: launch/local.sh -- --help shows the trainer's help
#   --help      this text
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

while (($#)); do
    common_option "$@" || { shift "$taken"; break; }
    shift "$taken"
done
use_python
show "$python" -m "$module" "$@"
exec "$python" -m "$module" "$@"
