"""Process ids, the addresses of a host, and its limits."""

import os
import signal
import subprocess
from pathlib import Path

from hvdgan.cli import hosts


def test_a_process_is_killed_only_if_it_is_still_the_one():
    child = subprocess.Popen(["sleep", "60"])
    pid, space, started = hosts.process_id(child.pid)
    assert not hosts.kill((pid, space, started + 1)) and not hosts.kill((pid, "another host", started))
    assert child.poll() is None
    child.send_signal(signal.SIGSTOP)
    assert hosts.kill((pid, space, started)) and child.wait(timeout=30) == -signal.SIGKILL
    assert not hosts.kill((pid, space, started))
    assert hosts.process_id(os.getpid())[0] == os.getpid()


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
