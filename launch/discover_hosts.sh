#!/usr/bin/env bash
# usage: launch/discover_hosts.sh [--hosts HOST:SLOTS,... | --hostfile FILE] [--slots N]
#
# The hosts that an elastic run may use now, a line HOST:SLOTS for each. launch/elastic.sh has horovodrun call it every
# second: a host that is no longer listed leaves the run, and one that is new joins it.
#
#   --hostfile FILE   those that the file names at this moment: "host slots=4", "host:4" or "host" in a line
#   --hosts ...       these, always
#   --slots N         processes on hosts that say no SLOTS (default: 1)
#   --help            this text
#
# Without hosts: those of the Slurm allocation that Slurm does not hold for down. For a node to be lost without the job's
# end the job must have been submitted with --no-kill.
set -euo pipefail
script=launch/discover_hosts.sh
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

# The lines of the allocation whose node answers; sinfo puts a star behind the state of one that does not.
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
