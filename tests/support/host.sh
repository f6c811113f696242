#!/usr/bin/env bash
# usage: host.sh NAME SHARED [VISIBLE...]
#
# Makes a host of the namespaces it is started in (mount, uts, pid, net), as their first process: its own name, /tmp,
# /run, /dev/shm, and SHARED's hosts file and ssh settings. SHARED and VISIBLE stay in place where /tmp would hide them.
# It lives until it is killed, and everything in its namespace of processes with it.
set -euo pipefail

name="$1" shared="$2"
shift

mount --make-rprivate /
# Not /proc of the machine: Slurm looks for its processes there.
mount -t proc proc /proc
hostname "$name"
mount --bind "$shared/hosts" /etc/hosts
mount --bind "$shared/ssh" /etc/ssh

mkdir -p "$shared/$name/tmp"
mount -t tmpfs -o mode=1777 tmpfs "$shared/$name/tmp"
for path in "$@"; do
    if [[ "$path" == /tmp/* ]]; then
        mkdir -p "$shared/$name$path"
        mount --bind "$path" "$shared/$name$path"
    fi
done
mount --rbind "$shared/$name/tmp" /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/sshd

ip link set lo up
touch "$shared/$name/ready"
# bash, not sleep: the first process has to bury those whose parents have died.
sleep infinity &
wait
