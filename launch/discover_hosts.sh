#!/usr/bin/env bash
# usage: launch/discover_hosts.sh [--hosts HOST:SLOTS,... | --hostfile FILE] [--slots N]
#
# Prints the hosts that an elastic run may use now, one line HOST:SLOTS per host. For launch/elastic.sh horovodrun calls
# it every second: a host that is no longer listed leaves the run, and a new one joins it.
#
#   --hostfile FILE   hosts in the file at this moment, one per line: "host slots=4", "host:4" or "host"
#   --hosts ...       fixed hosts
#   --slots N         processes on hosts without SLOTS (default: 1)
#   --help            this text
#
# Without these options: the hosts of the Slurm allocation that Slurm does not report as down. Submit the job with
# --no-kill, so that it survives the loss of a node.
set -euo pipefail
script=launch/discover_hosts.sh
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# Print the lines of the allocation whose node answers; sinfo marks the state of the others with a star.
hosts_that_are_up() {
    local all states line
    all="$(slurm_hosts)"
    states="$(sinfo --noheader --Node --nodes "${SLURM_JOB_NODELIST:?}" --format '%N %t')" || die "sinfo does not answer"
    while IFS= read -r line; do
        if grep -qE "^${line%%:*} (alloc|mix|idle|comp|drng|drain|resv|maint|plnd|boot)[^*]*$" <<<"$states"; then
            printf '%s\n' "$line"
        fi
    done <<<"$all"
}

while (($#)); do
    host_option "$@" || common_option "$@" || usage_error "$1: unknown option"
    shift "$taken"
done
case "${where:-}" in
    "") list="$(hosts_that_are_up)" ;;
    --hostfile) list="$(hosts_of_file "$list")" ;;
esac
IFS=$', \n' read -r -d '' -a words <<<"$list" || true
read_hosts "${where:-the Slurm allocation}" "${slots:-1}" "${words[@]}"
tr ',' '\n' <<<"$hosts"
