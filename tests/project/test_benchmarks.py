"""The programs of benchmarks/, shortened: they run and measure what they say.

gpu.sh runs on the CPU here; its results and its page say what was found."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

from launching import ROOT, run

sys.path.append(str(ROOT / "benchmarks"))
from gaussians import CENTRES, DEVIATIONS, Points
from gpu import parts
from stacked import Triples

BENCHMARKS = ROOT / "benchmarks"
GPU = BENCHMARKS / "gpu.sh"


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
    # TensorFlow alone takes 100 MB, a launcher less.
    assert all(each["images_per_sec"] > 0 and each["peak_mb"] > 100 for each in found["runs"])
    reports = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*horovod-gloo/rank-*.json")]
    assert sorted(each["rank"] for each in reports) == [0, 1] and reports[0]["weights"] == reports[1]["weights"]


def test_peers_refuse_what_stylegan2_cannot(tmp_path):
    """Programs of several ranks, and steps that do not hold whole cycles of its updates."""
    command = [sys.executable, BENCHMARKS / "peers" / "bench.py", "--network", "stylegan2", "--only"]
    several, odd = run([*command, "keras,mirrored"], tmp_path), run([*command, "keras", "--steps", "20"], tmp_path)
    assert several.returncode == odd.returncode == 2 and list(tmp_path.iterdir()) == []
    assert "one process; --only names mirrored" in several.stderr and "multiples of 16" in odd.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("protocol", "words", "row"),
    [
        ("ring", "--methods pack2,relativistic", "| PacGAN2, published | 10 | 7.9 ± 0.1 |"),
        (
            "stacked-b",
            "--methods pack2,wgan_gp --samples 300 --digits digits",
            "| PacDCGAN2, published | 50 | 484.5 ± 33 |",
        ),
    ],
)
def test_modes_are_counted_and_finished_runs_are_kept(tmp_path, protocol, words, row):
    """The row `real` counts other samples of the data, whose modes are known, and two ranks count the same."""
    labels, modes = other_points() if protocol == "ring" else other_triples(tmp_path)
    command = [sys.executable, BENCHMARKS / "modes.py", "--protocol", protocol, *words.split()]
    command += "--seeds 3 --steps 5 --runs runs --page page.md".split()
    for more in (["--out", "one.json", "--picture", "drawn.png"], ["--out", "other.json"]):
        done = run([*command, *more], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    found, again = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "other.json"))
    assert found == again and len(list((tmp_path / "runs").glob("*/*/train-*.log"))) == 2
    kept = run([*command, "--out", "one.json", "--runs", "none"], tmp_path)
    assert kept.returncode == 0 and not (tmp_path / "none").exists(), kept.stdout + kept.stderr
    assert json.loads((tmp_path / "one.json").read_text()) == found
    refused = run([*command, "--out", "one.json", "--steps", "6"], tmp_path)
    assert refused.returncode == 2 and "steps 5, not 6" in refused.stderr
    assert [f"{each['method']}" for each in found["runs"]] == words.split()[1].split(",")
    shares = np.bincount(labels[labels >= 0], minlength=modes) / (labels >= 0).sum()
    divergence = np.sum(shares[shares > 0] * np.log(modes * shares[shares > 0]))
    expected = {"modes": (shares > 0).sum(), "mode_good": (labels >= 0).mean(), "mode_kl": divergence}
    assert found["real"] == pytest.approx(expected, rel=1e-6)
    assert row in (tmp_path / "page.md").read_text()
    with Image.open(tmp_path / "drawn.png") as picture:
        assert picture.width > 1.5 * picture.height
    (folder,) = (tmp_path / "runs").glob(f"{protocol}-*")
    ranks = ["-m", "hvdgan.launch", "-np", "2", "--gloo", "evaluate", folder / "pack2-3" / "run"]
    numbers = ["--images", folder / "real.npy", "--samples", str(len(labels)), "--real-samples", "200"]
    done = run([sys.executable, *ranks, *numbers], tmp_path, PYTHONPATH=f"{BENCHMARKS}:{ROOT}")
    assert done.returncode == 0, done.stdout + done.stderr
    together = json.loads((folder / "pack2-3" / "run" / "evaluation.jsonl").read_text().splitlines()[-1])
    assert together["ranks"] == 2
    assert {name: together[f"eval/{name}"] for name in expected} == pytest.approx(expected, rel=1e-6)


@pytest.mark.long
def test_recipes_get_steps_of_equal_time_and_finished_runs_are_kept(tmp_path):
    command = [sys.executable, BENCHMARKS / "equal_time.py", *"--data digits --recipes r3gan --seeds 1".split()]
    command += "--samples 40 --runs runs --page page.md".split()
    (tmp_path / "runs").mkdir()
    for out in ("one.json", "other.json"):
        done = run([*command, "--minutes", "0.01", "--out", out], tmp_path, seconds=900)
        assert done.returncode == 0, done.stdout + done.stderr
    found, again = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "other.json"))
    assert found == again and len(list((tmp_path / "runs").glob("*/train-*.log"))) == 1
    seconds, (trained,) = found["seconds_of_a_step"]["r3gan"], found["runs"]
    steps = max(int(path.stem[5:]) for path in (tmp_path / "runs").glob("*/run/checkpoints/step-*.safetensors"))
    assert steps == trained["steps"] == max(round(0.6 / seconds), 4)
    assert trained["sliced_wasserstein"] > 0
    assert (
        f"| r3gan | {1000 * seconds:.0f} | {steps} | 1 | {trained['sliced_wasserstein']:.3f} |"
        in (tmp_path / "page.md").read_text()
    )


def other_points():
    """The modes of other points of the ring, -1 for those beyond three deviations, and the number of modes."""
    distances = np.linalg.norm(Points("ring", seed=1, num=2500).points[:, None] - CENTRES["ring"], axis=-1)
    labels = np.where(distances.min(axis=1) <= 3 * DEVIATIONS["ring"], distances.argmin(axis=1), -1)
    assert abs((labels >= 0).mean() - (1 - np.exp(-4.5))) < 0.008
    return labels, 8


def other_triples(folder):
    """The modes of other triples of digits that no classifier confuses, and the number of modes; trains one."""
    random = np.random.default_rng(0)
    for part, count in (("train", 256), ("test", 100)):
        labels = np.arange(count) % 10
        digits = random.integers(0, 60, (count, 32, 32, 1), np.uint8)
        for digit, label in zip(digits, labels, strict=True):
            row, column = 4 + 12 * (label // 5), 2 + 5 * (label % 5)
            digit[row : row + 10, column : column + 5] = 255
        (folder / "digits").mkdir(exist_ok=True)
        np.savez(folder / "digits" / f"{part}.npz", images=digits, labels=labels.astype(np.int32))
    (folder / "runs").mkdir()
    words = "--digits digits --epochs 8 --out runs/classifier.keras"
    done = run([sys.executable, BENCHMARKS / "stacked_classifier.py", *words.split()], folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((folder / "runs" / "classifier.json").read_text()) == {"epochs": 8, "accuracy": 1.0}
    triples = Triples("stacked-b", folder / "digits", seed=1, num=300)
    return (np.arange(256) % 10)[triples.chosen] @ [100, 10, 1], 1000


@pytest.mark.long
@pytest.mark.timeout(2000)
def test_all_parts_run_on_the_cpu(tmp_path):
    words = "--cpu --quick --recipe dcgan,completion --precision float32 --out out".split()
    done = run([GPU, *words], tmp_path, seconds=1900)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [json.loads(line) for line in (tmp_path / "out" / "results.jsonl").read_text().splitlines()[1:]]
    assert list(dict.fromkeys(each["part"] for each in found)) == list(parts.PARTS)
    assert {each["verdict"] for each in found} == {"passed"}
    (trained,) = [each["found"] for each in found if each["name"] == "completion, float32"]
    assert trained.count(" images/s (") == 3 and trained.endswith(" GB")
    text = (tmp_path / "out" / "page.md").read_text()
    assert "This ran on the CPU, and says nothing about GPUs" in text and "| hvdgan | keras |" in text


@pytest.mark.long
def test_programs_take_turns(tmp_path):
    words = "--device cpu --programs keras,hvdgan --precision float32 --rounds 2 --batch-size 2 --image-size 32 --nf 2"
    command = [sys.executable, "-m", "gpu.in_turn", *words.split(), *"--warm-up 1 --steps 3 --profiled 2".split()]
    done = run([*command, "--out", "out"], tmp_path, PYTHONPATH=f"{BENCHMARKS}:{ROOT}")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "turns.json").read_text())["programs"]
    assert [each["program"] for each in found] == ["keras", "hvdgan"]
    assert all(len(each["images_per_sec"]) == 2 and min(each["images_per_sec"]) > 0 for each in found)


def test_without_a_gpu_it_says_so(tmp_path):
    done = run([GPU], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2 and "there is no GPU here" in done.stderr and list(tmp_path.iterdir()) == []
