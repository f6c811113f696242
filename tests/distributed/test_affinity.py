"""The cores of a host and of each rank, by which its threads are counted; tests/parallel looks at them.
Modules: cli.hosts"""

import os
from pathlib import Path

import pytest

from hvdgan.cli import hosts
from hvdgan.distributed.affinity import cores_of_rank, reading_threads
from hvdgan.distributed.ranks import Ranks


@pytest.fixture
def host(monkeypatch, tmp_path):
    """A function that makes this process one of a host with some cores, in a control group with some limits."""

    def make(count, mine, cpuset=None, quota=None, group="job/step"):
        monkeypatch.setattr(os, "cpu_count", lambda: count)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(mine))
        monkeypatch.setattr(hosts, "control_groups", lambda: [tmp_path / group, (tmp_path / group).parent, tmp_path])
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


def test_the_control_groups_are_those_of_this_process_and_all_above(monkeypatch, tmp_path):
    text = ["0::/slurm/job_7/step_0"]
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *more: text[0] if str(path) == "/proc/self/cgroup" else read(path, *more)
    )
    monkeypatch.setattr(hosts, "CGROUPS", tmp_path)
    step = tmp_path / "slurm" / "job_7" / "step_0"
    assert hosts.control_groups() == [step, step.parent, tmp_path / "slurm", tmp_path]
    text[0] = "4:memory:/\n0::/\n"  # a container sees itself as the root
    assert hosts.control_groups() == [tmp_path]
    (tmp_path / "cpu.max").write_text("400000 100000\n")
    (tmp_path / "cpuset.cpus.effective").write_text("0-3,8,10-11\n")
    assert (hosts.core_quota(), hosts.allotted_cores()) == (4, 7)
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hosts.core_quota() is None
