"""How horovodrun and srun are called."""

from hvdgan.diagnostics.speed.starter import Launcher, choose_launcher


def test_named_hosts_share_the_processes_evenly(monkeypatch):
    launcher = choose_launcher("auto", None, ["node1:4", "node2:2"])
    assert [launcher.spread(count) for count in (1, 2, 3, 6)] == [[1, 0], [1, 1], [2, 1], [4, 2]]
    assert "node1:1,node2:1" in launcher.starter(2, 0).words
    assert "node1:1" in launcher.starter(1, 0).words
    assert launcher.elsewhere and not choose_launcher("horovodrun", None, []).elsewhere


def test_srun_gets_the_number_of_cores_of_each_process(monkeypatch):
    """On the smaller node; salloc leaves this process on another one, whose own cores tell nothing."""
    for name, value in {"JOB_ID": "1", "JOB_NUM_NODES": "3", "JOB_CPUS_PER_NODE": "72(x2),16"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    launcher = Launcher("srun", None, (), 3)
    assert launcher.spread(4) == [2, 1, 1] and launcher.cores(4) == 8
    assert {"--nodes=2", "--ntasks=2", "--cpus-per-task=8"} <= set(launcher.starter(2, 8).words)
