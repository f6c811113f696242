"""hvdgan.bench: its blocks of steps and their clock, its launchers, small real launches, their figures, and mistakes.
Modules: diagnostics.speed.blocks, diagnostics.speed.clocked, diagnostics.speed.launches, diagnostics.speed.measured,
diagnostics.speed.meeting, diagnostics.speed.report, diagnostics.speed.spec, diagnostics.speed.starter,
diagnostics.speed.summary, diagnostics.speed.worker"""

import json
import re
import shlex
import sys

import pytest

from hvdgan.bench import main
from hvdgan.cli.errors import RunError
from hvdgan.diagnostics.speed.blocks import PARTS, Clock, parts, plan
from hvdgan.diagnostics.speed.launches import Bench
from hvdgan.diagnostics.speed.starter import Launcher, choose_launcher
from launching import ROOT, run
from messages import refused

TINY = "--recipe dcgan --image-size 32 --nf 2 --data synthetic".split()
SMALL = "--ranks 1,2 --local-batch-size 4 --steps 2 --repeats 1 --scaling weak --controller gloo".split()


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What one small measurement wrote: its folder, what it printed, and its figures."""
    folder = tmp_path_factory.mktemp("bench")
    files = ["--json", "bench.json", "--trace", "line.json"]
    done = run([sys.executable, "-m", "hvdgan.bench", *TINY, *SMALL, *files], folder, forked=True)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout, json.loads((folder / "bench.json").read_text())


def run_of(facts, kind, ranks):
    return next(each for each in facts["runs"] if each["kind"] == kind and each["ranks"] == ranks)


def test_one_rank_two_and_two_copies_are_measured(measured):
    folder, printed, facts = measured
    assert [(each["kind"], each["ranks"]) for each in facts["runs"]] == [("ranks", 1), ("ranks", 2), ("copies", 2)]
    assert run_of(facts, "ranks", 2)["controller"] == "gloo"
    for each in facts["runs"]:
        assert 0 < each["startup_seconds"]["median"] < 200
        assert 1e8 < each["peak_rss_bytes"]["median"] < 1e10
    for kind in ("ranks", "copies"):
        cores = [set(process["cores"]) for process in run_of(facts, kind, 2)["processes"]]
        assert len(cores) == 2 and not cores[0] & cores[1]
    assert printed.startswith("Efficiency. ") and "Updates alone. " in printed
    assert {path.name for path in folder.iterdir()} == {"bench.json", "line.json"}


def test_the_timeline_is_of_ten_steps_of_what_both_ranks_reduce(measured):
    events = json.loads((measured[0] / "line.json").read_text())
    begun = [event for event in events if event.get("name") == "ALLREDUCE" and event["ph"] == "B"]
    assert len(begun) == 20  # the small networks' gradients are one tensor for each update


def test_each_update_reduces_4_bytes_for_each_parameter_that_it_owns_and_nothing_else(measured):
    updates = run_of(measured[2], "ranks", 2)["stages"]["adversarial"]["updates"]
    # generator: 100 * 16 * 8 + 2 * 8, 8 * 16 * 4 + 2 * 4, 4 * 16 * 2 + 2 * 2, 2 * 16 * 3 + 3; discriminator too
    expected = {"generator": 4 * 13567, "discriminator": 4 * 891}
    assert {name: update["bytes_reduced"] for name, update in updates.items()} == expected
    assert all(update["bytes_owned"] == update["bytes_reduced"] for update in updates.values())
    alone = run_of(measured[2], "ranks", 1)["stages"]["adversarial"]["updates"]
    assert {update["bytes_reduced"] for update in alone.values()} == {0}


def test_ranks_that_share_a_batch_are_compared_with_copies_of_as_many_images(tmp_path, monkeypatch, capsys):
    """Launches of four processes would take minutes: here a step takes 1 ms, and 1 ms for each image."""

    def launch(self, variant, **more):
        seconds = 1e-3 * (1 + variant.local_batch_size) * (1 if variant.kind == "copies" else variant.count)
        step = dict.fromkeys([*PARTS, "bytes_reduced", "bytes_owned"], 0.0) | {"step_seconds": seconds, "updates": {}}
        each = {"global_batch_size": variant.global_batch_size, "stages": {"only": step}, "controller": "mpi"}
        each |= {"startup_seconds": len(launched), "peak_rss_bytes": 1, "peak_gpu_bytes": None, "processes": []}
        launched.append((variant.kind, variant.count, variant.local_batch_size))
        single = each | {"global_batch_size": variant.local_batch_size}
        return each if variant.kind == "ranks" else {"copies": [single] * variant.count}

    launched = []
    monkeypatch.setattr(Bench, "launch", launch)
    monkeypatch.setattr(Launcher, "spread", lambda self, count: {})
    words = "--ranks 1,2,4 --scaling strong --local-batch-size 2 --repeats 2 --json strong.json".split()
    monkeypatch.chdir(tmp_path)
    assert main([*TINY, *words]) == 0
    expected = {("ranks", 4, 2), ("ranks", 2, 4), ("ranks", 1, 8), ("copies", 4, 2), ("copies", 2, 4)}
    assert set(launched) == expected and len(launched) == 2 * len(expected)
    assert launched[0][:2] == ("ranks", 1)  # a mistake in the recipe is reported as one there
    rows = json.loads((tmp_path / "strong.json").read_text())["efficiency"]
    assert [row["of_copies"]["median"] for row in rows] == pytest.approx([1, 1 / 2, 1 / 4])
    assert [row["of_one_rank"]["median"] for row in rows] == pytest.approx([1, 9 / 10 / 2, 9 / 12 / 4])
    printed = capsys.readouterr().out
    assert re.search(r"4 ranks +2 +only +666.7 +12.00 ", printed)
    assert "0.0 to 5.0" in printed  # the spread of the start


@pytest.mark.parametrize("words", refused("bench"))
def test_a_mistake_is_one_line_and_exit_code_2(words, tmp_path, monkeypatch, messages):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "there.json").write_text("mine")
    (tmp_path / "link.json").symlink_to("a.json")
    messages.refuses("bench", lambda given: main([*TINY, "--repeats", "1", *given]), words, folder=tmp_path)


def test_the_commands_of_the_page_on_performance_would_launch(tmp_path, monkeypatch, capsys):
    def launch(*arguments, **more):
        raise RunError("launched")

    monkeypatch.setattr(Bench, "launch", launch)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "performance.md").read_text()
    commands = re.findall("^python -m hvdgan.bench (.*)$", page, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert main(shlex.split(command)) == 1
        assert "launched" in capsys.readouterr().err


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
