#!/usr/bin/env bash
# Starts ranks on several machines: launch/multi_node.sh -H node1:4,node2:4 --recipe dcgan; --help lists more.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

launch "$@"
