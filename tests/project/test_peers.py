"""The peers of the speed benchmark train the same networks as hvdgan; the benchmark runs and compares them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator
from launching import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
import bench
import keras_gan
import report
import running
import work

PEERS = ROOT / "benchmarks" / "peers"


@pytest.mark.parametrize("sizes", [(64, 3, 64), (32, 1, 16)], ids=["synthetic", "digits"])
def test_every_program_trains_the_same_networks(sizes):
    """Each peer refuses other counts than the work's, the PyTorch ones as well; here those of Keras and hvdgan."""
    image_size, channels, nf = sizes
    task = work.Work(
        image_size=image_size,
        channels=channels,
        nf=nf,
        batch_size=2,
        precision="float32",
        warm_up=1,
        steps=1,
        out=Path(),
    )
    shape = {"image_size": image_size, "channels": channels, "nf": nf}
    ours = dcgan_generator(**shape, latent_size=task.latent_size), dcgan_discriminator(**shape)
    for mine, theirs, count in zip(ours, keras_gan.networks(task), task.parameters.values(), strict=True):
        shapes = [[tuple(v.shape) for v in network.trainable_variables] for network in (mine, theirs)]
        assert shapes[0] == shapes[1]
        assert sum(v.shape.num_elements() for v in mine.trainable_variables) == count


@pytest.mark.long
def test_programs_run_and_are_timed(tmp_path):
    """Ranks under Horovod and tf.distribute, which end with the same weights, and two copies of hvdgan."""
    names = ["horovod-gloo", "multiworker", "hvdgan-digits-x2"]
    # Enough steps that one copy works long after the other has begun.
    words = "--repeats 1 --warm-up 1 --steps 20 --nf 2 --batch-size 2 --runs runs".split()
    done = run([sys.executable, PEERS / "bench.py", "--only", ",".join(names), *words], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = tmp_path.glob("bench-*.json")
    known = json.loads(figures.read_text())
    assert known["failures"] == {} and set(known["summary"]) == set(names)
    for (measured,) in known["runs"].values():
        assert measured["images_per_sec"] > 0 and 0 < measured["start_seconds"] < 240
        assert measured["peak_mib"] > 100  # TensorFlow alone takes more, a launcher less
    for name in names[:2]:
        reports = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob(f"repeat-0/{name}/*/rank-*.json")]
        assert sorted(each["rank"] for each in reports) == [0, 1]
        assert reports[0]["weights"] == reports[1]["weights"]
        assert reports[0]["losses"] != reports[1]["losses"]  # of other images and latents
    assert figures.with_suffix(".png").stat().st_size > 5000


def test_ranks_apart_and_a_program_that_fails_are_reported(tmp_path, monkeypatch):
    for rank, weight in enumerate((1.0, 1.5)):
        text = json.dumps({"rank": rank, "ends": [1.0, 2.0], "weights": [weight]})
        (tmp_path / f"rank-{rank}.json").write_text(text)
    task = work.Work(
        image_size=32, channels=1, nf=2, batch_size=2, precision="float32", warm_up=1, steps=1, out=tmp_path
    )
    with pytest.raises(running.Failed, match="not hold the same weights"):
        running.peer_ends(task)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", "bench.py --only keras --repeats 1".split())
    monkeypatch.setattr(bench, "measure", lambda *_: (_ for _ in ()).throw(running.Failed("exit codes [1]")))
    assert bench.main() == 1


@pytest.mark.parametrize("left_out", ["", "generator/loss"])
def test_losses_that_are_not_finite_are_reported(tmp_path, left_out):
    """In bfloat16 all steps between two records may have been skipped: they have no loss."""
    record = {"generator/loss": float("nan"), "discriminator/loss": 1.0}
    record.pop(left_out, None)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(record) + "\n")
    task = work.Work(
        image_size=32, channels=1, nf=2, batch_size=2, precision="float32", warm_up=1, steps=1, out=tmp_path
    )
    with pytest.raises(running.Failed, match="not finite"):
        running.hvdgan_ends(task)


def test_copies_are_timed_while_all_train():
    early = {1: 1.0, 2: 2.0, 4: 4.0, 8: 6.0}  # twice as fast once the other has ended
    late = {1: 3.0, 2: 3.5, 5: 5.0}
    assert running.steps_per_second([early], 2) == pytest.approx(6 / 4)
    # From 3.5, when the later one is warm, to 5.0, when it ends: 2.5 steps and 3.
    assert running.steps_per_second([early, late], 2) == pytest.approx(5.5 / 1.5)
    with pytest.raises(running.Failed, match="take more --steps"):
        running.steps_per_second([{1: 1.0, 2: 2.0}, {1: 4.0, 2: 5.0}], 1)


def test_a_goal_is_judged_within_each_repeat_against_the_best_peer():
    def runs(*rates):
        return [
            {"repeat": repeat, "images_per_sec": rate, "start_seconds": 10.0, "peak_mib": 800.0}
            for repeat, rate in enumerate(rates)
        ]

    verdicts = report.judge(
        # The machine was half as fast in the second repeat.
        {"hvdgan-mpi": runs(80.0, 40.0, 80.0), "ddp": runs(70.0, 35.0, 70.0), "horovod-mpi": runs(45.0, 22.0, 45.0)}
    )
    (peers,) = [verdict for verdict in verdicts if verdict["goal"] == 1]
    assert peers["against"] == "ddp" and peers["bound"] == 1.10 and peers["reached"]
    assert peers["least"] == peers["ratio"] == peers["most"] == pytest.approx(80 / 70)
    (start,) = [verdict for verdict in verdicts if verdict["goal"] == 5]
    assert start["against"] == "horovod-mpi" and start["at_most"] and start["reached"]


@pytest.mark.parametrize(
    "words, message",
    [
        ("--only hvdgam", "--only hvdgam: no such program; --list names them"),
        ("--repeats 0", "0 is not a whole number of at least 1"),
        ("--json nowhere/out.json", "nowhere/out.json: there is no folder"),
        ("--json there.json", "there.json: exists; name a new file"),
        ("--json a.png --plot a.png", "--plot a.png: --json is the same file; name another one"),
        ("--plot medians.gif", "--plot medians.gif: expected a name that ends in .png"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench.py", *words.split()])
    (tmp_path / "there.json").touch()
    with pytest.raises(SystemExit) as left:
        bench.main()
    assert left.value.code == 2 and message in (said := capsys.readouterr().err) and said.count("\n") == 1


def test_every_program_is_listed():
    done = subprocess.run([sys.executable, PEERS / "bench.py", "--list"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for name in bench.DEFAULT:
        assert f"* {name}" in done.stdout
