"""hvdgan.bench: the plan of its blocks of steps and their clock, and its launchers.
Modules: diagnostics.speed.blocks, diagnostics.speed.clocked, diagnostics.speed.starter, diagnostics.speed.worker"""

from hvdgan.diagnostics.speed.blocks import PARTS, Clock, parts, plan
from hvdgan.diagnostics.speed.starter import Launcher, choose_launcher


def test_blocks_alternate_and_only_what_follows_the_lead_counts():
    blocks = plan(4, 2, 1, several=True)
    assert [(block.reduces, block.lead, block.measured) for block in blocks] == [
        *((kind, 2, 0) for kind in (True, False)),
        *((kind, 1, 2) for _ in range(2) for kind in (True, False)),
    ]
    clock, waited = Clock(blocks), []
    for step in range(clock.steps):
        clock.enter(step)
        waited += [step] if clock.ends_all else []
        clock.add(float(step), 0.5, 1.0)
    assert clock.times[True] == [[5.5, 0.5, 1.0], [11.5, 0.5, 1.0]]
    assert waited == [1, 3, 4, 6, 7, 9, 10, 12, 13, 15], "all steps end where the measured ones begin and end"
    found = parts([[4.0, 1.0, 2.5]], [[3.0, 0.5, 2.0]])
    assert [found[name] for name in PARTS] == [2.0, 0.5, 1.0, 0.5]


def test_named_hosts_share_the_processes_evenly():
    launcher = choose_launcher("auto", None, ["node1:4", "node2:2"])
    assert [launcher.spread(count) for count in (1, 2, 3, 6)] == [[1, 0], [1, 1], [2, 1], [4, 2]]
    assert "node1:1,node2:1" in launcher.starter(2, 0).words
    assert launcher.elsewhere and not choose_launcher("horovodrun", None, []).elsewhere


def test_srun_gets_the_number_of_cores_of_each_process(monkeypatch):
    """On the smaller node; salloc leaves this process on another one, whose own cores tell nothing."""
    for name, value in {"JOB_ID": "1", "JOB_NUM_NODES": "3", "JOB_CPUS_PER_NODE": "72(x2),16"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    launcher = Launcher("srun", None, (), 3)
    assert launcher.spread(4) == [2, 1, 1] and launcher.cores(4) == 8
    assert {"--nodes=2", "--ntasks=2", "--cpus-per-task=8"} <= set(launcher.starter(2, 8).words)
