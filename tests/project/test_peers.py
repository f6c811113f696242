"""The peers of the speed benchmark train the same networks as hvdgan; the benchmark runs and compares them."""

import dataclasses
import json
import sys

import pytest

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator
from launching import ROOT, run

sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
import bench
import keras_peers
import work

SCRIPT = ROOT / "benchmarks" / "peers" / "bench.py"
SMALL = work.Work(
    out="", batch_size=2, precision="float32", warm_up=1, steps=4, device="cpu", ranks=1, image_size=64, nf=4
)


def test_every_program_trains_the_same_networks():
    """Each peer refuses other counts than the work's, the PyTorch ones as well; here those of Keras and hvdgan."""
    shape = {"image_size": 64, "channels": 3, "nf": 4}
    ours = dcgan_generator(**shape, latent_size=work.LATENT_SIZE), dcgan_discriminator(**shape)
    for mine, theirs, count in zip(ours, keras_peers.networks(SMALL), SMALL.parameters, strict=True):
        shapes = [[tuple(v.shape) for v in network.trainable_variables] for network in (mine, theirs)]
        assert shapes[0] == shapes[1]
        assert sum(v.shape.num_elements() for v in mine.trainable_variables) == count


@pytest.mark.long
def test_programs_run_and_are_compared(tmp_path):
    """Ranks under Horovod and tf.distribute, which end with the same weights, and hvdgan."""
    names = ["hvdgan", "horovod-gloo", "multiworker", "mirrored", "hvdgan-gloo"]
    words = "--repeats 1 --warm-up 1 --steps 4 --nf 2 --image-size 32 --batch-size 2 --precision float32 --runs runs"
    command = [sys.executable, SCRIPT, "--only", ",".join(names), *words.split()]
    done = run([*command, "--json", "found.json"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failures"] == {} and {each["program"] for each in found["runs"]} == set(names)
    for each in found["runs"]:
        assert each["images_per_sec"] > 0 and 0 < each["start_seconds"] < 240
        assert each["peak_mb"] > 100  # TensorFlow alone takes more, a launcher less
    reports = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*horovod-gloo/rank-*.json")]
    assert sorted(each["rank"] for each in reports) == [0, 1] and reports[0]["weights"] == reports[1]["weights"]
    assert "| float32 | 2 | 2 | hvdgan-gloo | horovod-gloo | " in done.stdout
    again = run([*command, "--json", "found.json"], tmp_path)
    assert again.returncode == 2 and "found.json: exists" in again.stderr


def test_ranks_apart_and_losses_that_are_missing_are_failures(tmp_path):
    """In bfloat16 all steps between two records may have been skipped: they have no loss."""
    for rank, weight in enumerate((1.0, 1.5)):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps({"rank": rank, "weights": [weight]}))
    task = dataclasses.replace(SMALL, out=str(tmp_path))
    with pytest.raises(bench.Failed, match="not hold the same weights"):
        bench.from_reports(task)
    (tmp_path / "run").mkdir()
    for generator in ({"generator/loss": None}, {}):
        record = {"step": 1, "discriminator/loss": 1.0, **generator}
        (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(record) + "\n")
        with pytest.raises(bench.Failed, match="not finite"):
            bench.from_hvdgan(task, {})


def test_programs_are_compared_within_each_repeat():
    rates = {"hvdgan-mpi": (80.0, 40.0, 90.0), "ddp": (40.0, 20.0, 60.0)}  # the machine was slow in the second one
    runs = [
        {
            "program": name,
            "repeat": repeat,
            "images_per_sec": rate,
            "precision": "float32",
            "batch_size": 16,
            "ranks": 2,
        }
        for name, each in rates.items()
        for repeat, rate in enumerate(each)
    ]
    alone = {**runs[0], "program": "keras", "ranks": 1}
    rows = bench.table([*runs, alone]).splitlines()
    assert rows[-1] == "| float32 | 16 | 2 | hvdgan-mpi | ddp | 2.00 (1.50 to 2.00) |"
    assert "| float32 | 16 | 2 | ddp | 40.0 (20.0 to 60.0) |  |  |  |" in rows and "keras" not in rows[-1]
