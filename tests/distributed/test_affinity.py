"""The cores of a host and of each rank, by which its threads are counted; tests/parallel looks at them.
Modules: launching.hosts"""

import os
from pathlib import Path

import pytest

from hvdgan.distributed.affinity import cores_of_rank, reading_threads
from hvdgan.distributed.ranks import Ranks
from hvdgan.launching import hosts


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A function that makes this process one of a host with some cores, in a control group with some limits."""

    def make(count, mine, cpuset=None, quota=None, group="job/step"):
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        groups = [tmp_path / group, (tmp_path / group).parent, tmp_path]
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(mine))
        monkeypatch.setattr(hosts, "control_groups", lambda kind="": [] if kind else groups)
        (tmp_path / group).mkdir(parents=True)
        if cpuset is not None:
            (tmp_path / group / "cpuset.cpus.effective").write_text(f"{cpuset}\n")
        for name, value in (quota or {}).items():
            (tmp_path / name / "cpu.max").write_text(f"{value}\n")

    return make


ALL = range(64)


@pytest.mark.parametrize(
    ("of_host", "launcher", "local_size", "expected"),
    [
        pytest.param({"mine": ALL}, "horovodrun", 4, 16, id="horovodrun, 4 ranks on 64 cores"),
        pytest.param({"mine": range(8, 16)}, "mpirun", 4, 8, id="mpirun, bound to 8 cores each"),
        pytest.param({"mine": range(8), "cpuset": "0-7"}, "mpirun", 4, 2, id="docker --cpuset-cpus, mpirun unbound"),
        pytest.param({"mine": ALL, "quota": {"job/step": "800000 100000"}}, "horovodrun", 4, 2, id="8 for 4 ranks"),
    ],
)
def test_reading_and_computing_threads_are_bounded_by_the_cores_of_the_rank(
    host, of_host, launcher, local_size, expected
):
    host(64, **of_host)
    for rank in range(min(local_size, 4)):
        ranks = Ranks(rank, local_size, rank, local_size, launcher)
        assert cores_of_rank(ranks) == reading_threads(0, ranks) == expected
        assert reading_threads(3, ranks) == 3  # --pipeline.threads wins


@pytest.fixture
def grouped(monkeypatch, tmp_path):
    """A function that puts this process into control groups, as /proc/self/cgroup tells it."""
    read, text = Path.read_text, [""]

    def told(path, *more):
        return text[0] if str(path) == "/proc/self/cgroup" else read(path, *more)

    monkeypatch.setattr(Path, "read_text", told)
    monkeypatch.setattr(hosts, "CGROUPS", tmp_path)
    return lambda lines: text.__setitem__(0, lines)


def test_the_control_groups_are_those_of_this_process_and_all_above(grouped, tmp_path):
    grouped("0::/slurm/job_7/step_0")
    step = tmp_path / "slurm" / "job_7" / "step_0"
    assert hosts.control_groups() == [step, step.parent, tmp_path / "slurm", tmp_path]
    grouped("4:memory:/\n0::/\n")  # a container sees itself as the root
    assert hosts.control_groups() == [tmp_path]
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    (tmp_path / "cpuset.cpus.effective").write_text("0-3,8,10-11\n")
    assert (hosts.core_quota(), hosts.allotted_cores()) == (4, 7)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hosts.core_quota() is None


@pytest.mark.parametrize("unified", ["", "0::/system.slice\n"])
def test_the_limits_of_control_groups_v1_count_as_well(grouped, tmp_path, unified):
    """As on hosts of some years ago: one tree for each kind. A container may not see the folders of its own groups."""
    grouped("9:memory:/slurm/job_7\n5:cpu,cpuacct:/docker/5\n3:cpuset:/docker/5\n1:name=systemd:/x\n" + unified)
    free = hosts.free_memory()
    for name, value in {
        "memory/slurm/job_7/memory.limit_in_bytes": 10_000_000,
        "memory/slurm/job_7/memory.usage_in_bytes": 4_000_000,
        "memory/slurm/job_7/memory.stat": "cache 1\ninactive_file 5\ntotal_inactive_file 1000000",
        "memory/memory.limit_in_bytes": 2**63 - 4096,  # no limit
        "memory/memory.usage_in_bytes": 8_000_000,
        "memory/memory.stat": "total_inactive_file 0",
        "cpu/cpu.cfs_quota_us": 250_000,
        "cpu/cpu.cfs_period_us": 100_000,
        "cpuset/cpuset.effective_cpus": "0-3,8",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert (hosts.core_quota(), hosts.allotted_cores(), hosts.free_memory()) == (2, 5, 7_000_000)
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "memory/slurm/job_7/memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert hosts.core_quota() is None and hosts.free_memory() > 7_000_000 < free
