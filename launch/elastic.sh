#!/usr/bin/env bash
# Starts ranks on hosts that may come and go: launch/elastic.sh --hostfile hosts.txt --recipe dcgan; --help lists more.
set -euo pipefail
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

launch --elastic "$@"
