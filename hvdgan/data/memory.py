"""How much memory this process may still take."""

from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def free_memory() -> int | None:
    """Bytes, by the host and by the limits that a scheduler or a container sets (control groups, version 2).

    None where the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        facts = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
        free = 1024 * facts["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return min([free, *_left_in_groups()])


def _left_in_groups() -> list[int]:
    """Of each group this process is in that has a limit, from its own upwards."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    own = next((line[3:] for line in groups if line.startswith("0::")), "/").strip("/")
    left = []
    for group in [_CGROUPS / own, *(_CGROUPS / own).parents]:
        try:
            limit = int((group / "memory.max").read_text())
            taken = int((group / "memory.current").read_text())
            statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):  # no such file, or "max": no limit
            continue
        # Pages of files that nobody has used for long count as taken, and are given back when asked for.
        left.append(max(0, limit - taken + int(statistics.get("inactive_file", 0))))
    return left
