"""The programs of benchmarks/, shortened: they run and measure what they say.

gpu.sh runs on the CPU here; its results and its page say what was found."""

import json
import sys

import pytest
from PIL import Image

from launching import ROOT, run

sys.path.append(str(ROOT / "benchmarks"))
from gpu import parts

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
def test_modes_are_counted_and_finished_runs_are_kept(tmp_path):
    """Of 2,500 other points 1 - exp(-4.5) are within three deviations, and the KL has a mean of 7 / 5,000."""
    words = "--protocol ring --methods pack2,relativistic --seeds 3 --steps 3 --runs runs --page page.md".split()
    command = [sys.executable, BENCHMARKS / "modes.py", *words]
    for more in (["--out", "one.json", "--picture", "ring.png"], ["--out", "other.json"]):
        done = run([*command, *more], tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
    found, again = (json.loads((tmp_path / name).read_text()) for name in ("one.json", "other.json"))
    assert found == again and len(list((tmp_path / "runs").glob("*/*/train-*.log"))) == 2
    assert [each["method"] for each in found["runs"]] == ["pack2", "relativistic"]
    assert all(0 <= each["modes"] <= 8 for each in found["runs"])
    real = found["real"]
    assert real["modes"] == 8 and abs(real["mode_good"] - 0.9889) < 0.008 and 0 < real["mode_kl"] < 0.006
    assert "| PacGAN2, published | 10 | 7.9 ± 0.1 |" in (tmp_path / "page.md").read_text()
    with Image.open(tmp_path / "ring.png") as picture:
        assert picture.width > 1.5 * picture.height


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
