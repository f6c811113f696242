"""This process and its host: cores, free memory, addresses, process and network ids."""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
import time
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
"""where the control groups are mounted"""
_SIOCGIFADDR = 0x8915
_RESERVE_OF_FILES = 512


def cores() -> list[int]:
    """The numbers of the cores that this process may run on, in ascending order: its CPU affinity."""
    return sorted(os.sched_getaffinity(0))


def allotted_cores() -> int:
    """The number of cores that the container or job of this process may use, or the host's.

    A process that may run on fewer of them has been bound by its launcher.
    """
    groups = [group / "cpuset.cpus.effective" for group in control_groups()]
    for path in [*groups, *(group / "cpuset.effective_cpus" for group in control_groups("cpuset"))]:
        with contextlib.suppress(OSError, ValueError):  # not limited by this group
            ends = [part.split("-") for part in path.read_text().strip().split(",")]
            return sum(int(end[-1]) - int(end[0]) + 1 for end in ends)
    return os.cpu_count() or len(cores())


def core_quota() -> int | None:
    """The number of cores whose time the control groups of this process grant it, such as docker run --cpus 4.

    All processes of the group share the quota. It is rounded down, at least to 1, because a process that has used it up
    stands still for the rest of a period; None: there is no quota.
    """
    quotas = []
    for group in control_groups():
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max": no quota
            quota, period = map(int, (group / "cpu.max").read_text().split())
            quotas.append(max(1, quota // period))
    for group in control_groups("cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (int((group / f"cpu.cfs_{each}_us").read_text()) for each in ("quota", "period"))
            quotas += [max(1, quota // period)] * (quota > 0)  # -1: no quota
    return min(quotas, default=None)


def control_groups(kind: str = "") -> list[Path]:
    """The folders of this process's control groups, v2 or one kind of v1: its own first, then those that hold it."""
    try:
        groups = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return []
    own = next((path for _, kinds, path in groups if kind in kinds.split(",")), "/").strip("/")
    return [CGROUPS / kind / each for each in (Path(own), *Path(own).parents)]


def free_memory() -> int | None:
    """Bytes that this process may still take, within the limits of a scheduler or container (control groups).

    None if the system does not report them.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        left = [1024 * facts["MemAvailable"]]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    v2 = [(group, "memory.max", "memory.current") for group in control_groups()]
    v1 = [(group, "memory.limit_in_bytes", "memory.usage_in_bytes") for group in control_groups("memory")]
    for group, limit_file, taken_file in [*v2, *v1]:
        try:
            limit, taken = (int((group / name).read_text()) for name in (limit_file, taken_file))
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        # Inactive pages of files count as taken, but the kernel frees them on demand.
        inactive = statistics.get("total_inactive_file", statistics.get("inactive_file", 0))
        left.append(max(0, limit - taken + int(inactive)))
    return min(left)


def network_id() -> str:
    """An id that two processes share if they reach each other as 127.0.0.1: same boot, same network namespace."""
    return f"{_boot()} {_namespace('net')}"


def process_id(pid: int) -> tuple[int, str, int]:
    """An id that no other process ever has: pid, its boot and pid namespace, its start time in clock ticks.

    An OSError says that it is dead, or that /proc is hidden.
    """
    return pid, f"{_boot()} {_namespace('pid')}", _started(pid)


def running_seconds() -> float:
    """Seconds since this process was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - _started(os.getpid()) / os.sysconf("SC_CLK_TCK")


def kill(process: tuple[int, str, int]) -> bool:
    """Send SIGKILL to a process, unless its pid is now another's or it is on another host; returns if it was sent."""
    pid = process[0]
    try:
        if process_id(pid) != process:
            return False
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def addresses() -> list[str]:
    """The addresses at which other hosts may reach this one."""
    of_interfaces = [address for _, name in socket.if_nameindex() if (address := address_of(name))]
    try:
        resolved = socket.getaddrinfo(socket.gethostname(), None, proto=socket.IPPROTO_TCP)
    except OSError:
        resolved = []
    found = dict.fromkeys([*(str(information[4][0]) for information in resolved), *of_interfaces])
    return [address for address in found if not address.startswith(("127.", "::1", "fe80:"))]


def name_without_address() -> str | None:
    """The name of this host, if no address can be found for it, and the reason; None if there is one."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except (OSError, UnicodeError) as error:
        return f"{name} ({error})"
    return None


def address_of(interface: str) -> str | None:
    """The IPv4 address of a network interface; None if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def allow_open_files(more: int) -> None:
    """Raise the soft limit of open files so that `more` files fit in, with a reserve, at most to the hard limit."""
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
    """The start time of a process in clock ticks; one that has died and was not waited for is no longer there."""
    # Split after the last bracket: the second field, the process's name in brackets, may contain anything.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] in "ZX":
        raise ProcessLookupError(f"process {pid} is dead")
    return int(fields[19])


def is_running(pid: int) -> bool:
    """Check whether a process of this host is alive; a number that no process can have counts as alive."""
    try:
        os.kill(pid, 0)
        _started(pid)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # the process of another user, or a hidden /proc
    return True
