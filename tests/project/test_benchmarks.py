"""The programs of benchmarks/, shortened: they run, they measure what they say, and name a goal that is missed.

gpu.sh runs on the CPU here; its results and its page say what was found."""

import json
import shutil
import signal
import sys

import psutil
import pytest

from hvdgan.networks.dcgan import dcgan_discriminator, dcgan_generator
from launching import ROOT, SECONDS, run, started, wait_until

sys.path.extend(str(ROOT / folder) for folder in ("examples/data", "benchmarks", "benchmarks/peers"))
import bench
import calo3d_quality
import keras_peers
import processes
import quality
import ranks
import work
from gpu import parts

BENCHMARKS = ROOT / "benchmarks"
GPU = BENCHMARKS / "gpu.sh"


@pytest.mark.long
def test_the_command_for_calo3d_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(calo3d_quality, "COMMAND", "--nf 2 --global-batch-size 4 --steps 2 --r1-every 2")
    words = ["--run", tmp_path, "--num", 30, "--samples", 40, "--out", tmp_path / "o.json"]
    monkeypatch.setattr(sys, "argv", ["calo3d_quality.py", *map(str, words)])
    with pytest.raises(SystemExit, match="not reached"):
        calo3d_quality.main()
    figures = json.loads((tmp_path / "o.json").read_text())
    assert figures["worst"] > 0.05 and len(figures["largest_errors"]["response"]) == 5


@pytest.mark.long
def test_the_commands_for_digits_run(tmp_path, monkeypatch):
    short = {"completion": "--nf 2 --stages completion=2,discriminator=2,joint=2", "dcgan": "--nf 2 --steps 2"}
    monkeypatch.setattr(quality, "COMMANDS", short)
    monkeypatch.setattr(quality, "SAMPLES", 20)
    monkeypatch.setattr(sys, "argv", ["quality.py", "--runs", str(tmp_path), "--out", str(tmp_path / "out.json")])
    with pytest.raises(SystemExit, match="not reached: completion, dcgan"):
        quality.main()
    figures = json.loads((tmp_path / "out.json").read_text())
    assert figures["completion"]["eval/hole_psnr"] < 14.9 and figures["dcgan"]["mean_top_probability"] < 1
    assert (tmp_path / "dcgan" / "grid.png").is_file()


@pytest.mark.long
def test_the_benchmark_of_reading_runs(tmp_path):
    flags = "--images 130 --megabytes 9 --rounds 1 --seconds 0.1 --cores 1 --json a.json"
    done = run([sys.executable, BENCHMARKS / "input.py", *flags.split()], tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    pictures = {f"picture, {name}, 1 cores" for name in ("folder", "packed", "tf.data", "keras", "decode")}
    arrays = {f"array, {kind}, hvdgan, 1 cores" for kind in ("npy", "hdf5", "gzip", "contiguous", "packed")}
    assert pictures | arrays | {"array, packed, bare, 1 cores", "array, npy, generator, 1 cores"} <= found.keys()
    assert all(rate > 0 for rates in found.values() for each in rates for rate in each)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("ss") is None, reason="needs ss: apt-get install iproute2")
def test_what_ranks_receive_is_measured():
    """Of 28 kB of gradients each of two ranks receives as much, and less than that again of all else."""
    found = ranks.run(2, "gloo", "log")
    assert [*found["start_seconds"]] == ["launch", "load", "build", "step"]
    for who in ("root", "others"):
        assert 27_000 < found[who]["bytes"] < 56_000 and found[who]["messages"] > 2 and found[who]["peak_mib"] > 100


def test_every_peer_trains_the_same_networks():
    """Each peer refuses other counts than the work's, the PyTorch ones as well; here those of Keras and hvdgan."""
    settings = {"out": "", "precision": "float32", "warm_up": 1, "steps": 4, "device": "cpu", "ranks": 1}
    small = work.Work(**settings, batch_size=2, image_size=64, nf=4)
    shape = {"image_size": 64, "channels": 3, "nf": 4}
    ours = dcgan_generator(**shape, latent_size=work.LATENT_SIZE), dcgan_discriminator(**shape)
    for mine, theirs, count in zip(ours, keras_peers.networks(small), small.parameters, strict=True):
        shapes = [[tuple(v.shape) for v in network.trainable_variables] for network in (mine, theirs)]
        assert shapes[0] == shapes[1]
        assert sum(v.shape.num_elements() for v in mine.trainable_variables) == count


@pytest.mark.long
def test_peers_run_and_are_compared(tmp_path):
    """Ranks under Horovod and tf.distribute, which end with the same weights, and hvdgan."""
    names = ["hvdgan", "horovod-gloo", "multiworker", "mirrored", "hvdgan-gloo"]
    words = "--repeats 1 --warm-up 1 --steps 4 --nf 2 --image-size 32 --batch-size 2 --precision float32 --runs runs"
    command = [sys.executable, BENCHMARKS / "peers" / "bench.py", "--only", ",".join(names), *words.split()]
    done = run([*command, "--json", "found.json"], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["failures"] == {} and {each["program"] for each in found["runs"]} == set(names)
    for each in found["runs"]:
        assert each["images_per_sec"] > 0 and 0 < each["start_seconds"] < 240
        assert each["peak_mb"] > 100  # TensorFlow alone takes more, a launcher less
    reports = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*horovod-gloo/rank-*.json")]
    assert sorted(each["rank"] for each in reports) == [0, 1] and reports[0]["weights"] == reports[1]["weights"]


def test_peers_are_compared_within_each_repeat():
    rates = {"hvdgan-mpi": (80.0, 40.0, 90.0), "ddp": (40.0, 20.0, 60.0)}  # the machine was slow in the second one
    task = {"precision": "float32", "batch_size": 16, "ranks": 2}
    runs = [
        {"program": name, "repeat": repeat, "images_per_sec": rate, **task}
        for name, each in rates.items()
        for repeat, rate in enumerate(each)
    ]
    rows = bench.table([*runs, {**runs[0], "program": "keras", "ranks": 1}]).splitlines()
    assert rows[-1] == "| float32 | 16 | 2 | hvdgan-mpi | ddp | 2.00 (1.50 to 2.00) |"


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_all_parts_run_on_the_cpu(tmp_path):
    words = "--cpu --quick --recipe dcgan,completion --precision float32 --out out".split()
    done = run([GPU, *words], tmp_path, seconds=1900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()[1:]]
    assert list(dict.fromkeys(each["part"] for each in found)) == list(parts.PARTS)
    verdicts = {each["name"]: each["verdict"] for each in found}
    assert set(verdicts.values()) == {"passed"}
    assert {
        "dcgan: one rank and the CPU",
        "dcgan: 2 ranks and one",
        "float32 without TF32",
        "tests/gpu",
    } <= verdicts.keys()
    (trained,) = [each["found"] for each in found if each["name"] == "completion, float32"]
    assert trained.count(" images/s (") == 3 and trained.endswith(" GB")
    text = (tmp_path / "out" / "page.md").read_text()
    assert "This ran on the CPU, and says nothing about GPUs" in text
    assert "of independent copies" in text and "| hvdgan | keras |" in text and "all-reduce" in text


def test_the_end_of_a_job_ends_the_running_command(tmp_path):
    """Slurm sends SIGTERM; what was done is there."""
    words = [GPU, *"--cpu --quick --only demo --out out".split()]
    with started(words, tmp_path) as process:
        log = tmp_path / "out" / "logs" / "demo.txt"
        wait_until(log.exists, SECONDS, (tmp_path / "said").read_text)
        below = process.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 130 and below
        assert not psutil.wait_procs(below, timeout=SECONDS)[1]
    assert (tmp_path / "out" / "results.jsonl").read_text().startswith('{"machine"')


def test_without_a_gpu_it_says_so(tmp_path):
    done = run([GPU], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "there is no GPU here" in done.stderr and list(tmp_path.iterdir()) == []


def test_a_command_is_ended_at_its_time_limit_with_its_children(tmp_path):
    words = ["bash", "-c", "echo NCCL WARN no link; sleep 1000 & echo $! >child; wait"]
    done = processes.run(words, tmp_path / "logs" / "a.txt", 1.0, tmp_path, {})
    assert done.code is None and done.errors[0] == "NCCL WARN no link" and "time limit" in done.errors[-1]
    assert not psutil.pid_exists(int((tmp_path / "child").read_text()))
