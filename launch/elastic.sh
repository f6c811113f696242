#!/usr/bin/env bash
# usage: launch/elastic.sh [-np N] [--min-np N] [--max-np N] [-H HOST:SLOTS,... | --hostfile FILE] [more] [TRAINER ARGUMENTS ...]
#
# Starts processes on several machines that may come and go, by horovodrun over Gloo and ssh without a password. A lost
# host does not end the run: the remaining ranks continue from the last commit in memory, and new hosts are taken in.
# All hosts must see this checkout, its .venv and the run folder under the same path.
#
#   launch/elastic.sh -np 4 --min-np 2 --max-np 8 --hostfile hosts.txt --recipe dcgan --commit-every 50
#
#   -np N                        processes to start with, for which it waits (default: all slots that exist now)
#   --min-np N                   fewest processes; with fewer the run waits for hosts, and ends after --elastic-timeout
#                                (default: 1)
#   --max-np N                   most processes (default: all slots)
#   --hostfile FILE              hosts, one per line: "host slots=4", "host:4" or "host"; read again every second
#   -H, --hosts HOST:SLOTS,...   fixed hosts (default: the hosts of the Slurm allocation that are up)
#   --slots N                    processes on hosts without SLOTS (default: 1)
#   --interface NAME,...         network interfaces (default: those that two hosts have in common at the start)
#   --elastic-timeout N          seconds to wait for --min-np slots (default: 600)
#   --cooldown LOW,HIGH          seconds until a lost host is tried again, from LOW on doubled each time (default: 20,600)
#   --ssh-port N, --ssh-identity FILE
#   --print                      print the command and do nothing
#   -m MODULE                    module to run instead of hvdgan.train
#   --                           ends these options
#   --help                       this text
#
# horovodrun blacklists whole hosts: if one process dies, all processes of its host leave, and a run on one
# host ends. SIGTERM, SIGUSR2 or Ctrl-C: the ranks save and stop, exit code 75; a second signal ends them at once.
set -euo pipefail
# Seconds that the remaining ranks wait in Gloo for a host that was cut off without closing its connections.
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
    usage_error "$where: with one host the network of later hosts is unknown; name it with --interface"
fi
use_python
if lacks_gloo; then
    usage_error "elastic runs go over Gloo, and this Horovod was built without; make setup builds one that has it"
fi
# One string, because horovodrun passes it to a shell.
printf -v discover '%q ' bash "$root/launch/discover_hosts.sh" "${discovery[@]}"
# launch/bin has an ssh that notices when the other host is gone; otherwise horovodrun waits for its processes for ever.
PATH="$root/launch/bin:$PATH"
command=(horovodrun -np "$np" --min-np "$min" ${max:+--max-np "$max"} --host-discovery-script "${discover% }"
    --blacklist-cooldown-range "${cooldown[@]}" --disable-cache "${options[@]}" "$python" -m "$module" "$@")
show "${command[@]}"
supervise "${command[@]}"
