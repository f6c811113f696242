#!/usr/bin/env bash
# usage: launch/elastic.sh [-np N] [--min-np N] [--max-np N] [-H HOST:SLOTS,... | --hostfile FILE] [more] [TRAINER ARGUMENTS ...]
#
# Processes on several machines that may come and go, by horovodrun over Gloo and ssh without a password. A host that is
# lost does not end the run: it goes on from the last commit in memory, with those that remain; hosts that turn up are
# taken in. All hosts must see this checkout, its .venv and the run folder under the same path.
#
#   launch/elastic.sh -np 4 --min-np 2 --max-np 8 --hostfile hosts.txt --recipe dcgan --commit-every 50
#
#   -np N                        processes to start with (default: all slots there are now); it waits until there are as many
#   --min-np N                   fewer than that wait for hosts, and in the end give up (default: 1)
#   --max-np N                   more are not used (default: all slots)
#   --hostfile FILE              "host slots=4", "host:4" or "host" in a line; it is read again every second
#   -H, --hosts HOST:SLOTS,...   these hosts (default: those of the Slurm allocation that are up)
#   --slots N                    processes on hosts that say no SLOTS (default: 1)
#   --interface NAME,...         network interfaces to use (default: what two hosts at the start have in common)
#   --elastic-timeout N          seconds to wait for --min-np slots (default: 600)
#   --cooldown LOW,HIGH          seconds after which a host that was lost is tried again; from LOW on, twice as long each
#                                time (default: 20,600)
#   --ssh-port N, --ssh-identity FILE
#   --print                      print the command and do nothing
#   -m MODULE                    another module than hvdgan.train
#   --                           ends these options
#   --help                       this text
#
# horovodrun gives up a host as a whole: where one of its processes dies, all of it leave. On one host alone it ends with
# the first. SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second one ends them at once.
set -euo pipefail
# The rank that remains waits so long in Gloo for a host that was cut off and has closed no connection.
export HOROVOD_GLOO_TIMEOUT_SECONDS="${HOROVOD_GLOO_TIMEOUT_SECONDS-120}"
# shellcheck source=launch/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"

min=1 max="" cooldown="20,600" interface="" controller=""
options=() discovery=()
while (($#)); do
    case "$1" in
        --min-np) min="$(whole "$@")" taken=2 ;;
        --max-np) max="$(whole "$@")" taken=2 ;;
        --elastic-timeout) options+=(--elastic-timeout "$(whole "$@")") taken=2 ;;
        --cooldown) cooldown="$(value "$@")" taken=2 ;;
        --interface) interface="$(value "$@")" taken=2 ;;
        --ssh-port) options+=(--ssh-port "$(whole "$@")") taken=2 ;;
        --ssh-identity) options+=(--ssh-identity-file "$(value "$@")") taken=2 ;;
        --gloo) taken=1 ;;
        --mpi) usage_error "--mpi: elastic runs go over Gloo; leave it out" ;;
        *) host_option "$@" || common_option "$@" || { shift "$taken"; break; } ;;
    esac
    shift "$taken"
done
if ! [[ "$cooldown" =~ ^([1-9][0-9]{0,3}),([1-9][0-9]{0,3})$ ]] || ((BASH_REMATCH[1] > BASH_REMATCH[2] || BASH_REMATCH[2] > 3600)); then
    usage_error "--cooldown $cooldown: expected LOW,HIGH in seconds, from 1 to 3600"
fi
read -r -a cooldown <<<"${cooldown/,/ }"
case "${where:-}" in
    "") ;;
    --hostfile) discovery=(--hostfile "$(realpath -- "$list")") ;;
    *) discovery=(--hosts "$list") ;;
esac
if [[ -n "${slots:-}" ]]; then discovery+=(--slots "$slots"); fi
wanted="${np:-}"
np=1
choose_hosts
np="${wanted:-$((max && ranks > max ? max : ranks))}"
((min <= np)) || usage_error "--min-np $min: more than the $np processes to start with (-np)"
[[ -z "$max" ]] || ((np <= max)) || usage_error "--max-np $max: fewer than the $np processes to start with (-np)"
if [[ -n "$interface" ]]; then
    options+=(--network-interfaces "$interface")
elif [[ "$hosts" != *,* ]]; then
    usage_error "$where: one host alone does not tell which network the others will share; name it with --interface"
fi
use_python
# A string for the shell: horovodrun hands it to one.
printf -v discover '%q ' bash "$root/launch/discover_hosts.sh" "${discovery[@]}"
# An ssh that notices when the other host is gone: without it horovodrun waits for that host's processes for ever.
PATH="$root/launch/bin:$PATH"
command=(horovodrun -np "$np" --min-np "$min" ${max:+--max-np "$max"} --host-discovery-script "${discover% }"
    --blacklist-cooldown-range "${cooldown[@]}" --disable-cache "${options[@]}" "$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
