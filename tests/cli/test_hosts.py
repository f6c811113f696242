"""Process ids, the addresses of a host, and its limits."""

from pathlib import Path

from hvdgan.cli import hosts


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
