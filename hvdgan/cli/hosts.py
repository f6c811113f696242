"""What a process can tell of its host and of itself, so that others find it and do not mistake it."""

import fcntl
import os
import resource
import signal
import socket
import struct
import time
from pathlib import Path

_SIOCGIFADDR = 0x8915
_RESERVE_OF_FILES = 512


def network_id() -> str:
    """The same for two processes that reach each other as 127.0.0.1: they share a boot and a network namespace."""
    return f"{_boot()} {_namespace('net')}"


def process_id(pid: int) -> tuple[int, str, int]:
    """(pid, the space of pids it counts in, its start in clock ticks): no other process ever has all three."""
    return pid, f"{_boot()} {_namespace('pid')}", _started(pid)


def running_seconds() -> float:
    """How long ago this process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _started(os.getpid()) / os.sysconf("SC_CLK_TCK")


def kill(process: tuple[int, str, int]) -> bool:
    """SIGKILL to a process named by process_id(), if it is still that one and in reach of this one."""
    pid = process[0]
    try:
        if process_id(pid) != process:
            return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def addresses() -> list[str]:
    """Where others may reach this host, the likeliest first: Gloo's interface, the host's name, all interfaces."""
    names = [name for _, name in socket.if_nameindex()]
    chosen = os.environ.get("HOROVOD_GLOO_IFACE", "").split(",")
    names.sort(key=lambda name: name not in chosen)
    of_interfaces = [address for name in names if (address := _address_of(name))]
    try:
        resolved = socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)
    except OSError:
        resolved = []
    of_name = [str(information[4][0]) for information in resolved]
    first = of_interfaces[:1] if set(names) & set(chosen) else []
    found = dict.fromkeys([*first, *of_name, *of_interfaces])
    return [address for address in found if not address.startswith(("127.", "::1", "fe80:"))]


def listen(address: str | None) -> socket.socket:
    """A listening socket on a free port of one address of this host, or of all."""
    if address:
        return socket.create_server((address, 0), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def allow_open_files(more: int) -> None:
    """Raise the limit of open files to those open now, `more` and a reserve, at most to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/proc/self/fd")) + more + _RESERVE_OF_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _namespace(kind: str) -> str:
    return os.readlink(f"/proc/self/ns/{kind}")


def _started(pid: int) -> int:
    # The second field, the name in brackets, may hold anything.
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def _address_of(interface: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None
