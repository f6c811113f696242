"""Measures how fast images are read: 256 x 256 JPEG files to 64 x 64 pixels, against other readers, on 1 and 2 cores.

    python benchmarks/input.py --torch-python /path/to/python --json input.json      11 minutes

Every figure is the median of the rounds, with the smallest and the largest. In a round each contender runs once, in a
process of its own that is bound to its cores. The files are crops of the two photographs of scikit-learn; after the
first round all are in the system's page cache.

The rates are those that a run gets. Packed files are fast because hvdgan.prepare has decoded and resized the images
once: they hold pixels. Decoding the files alone, in memory, is the upper bound of reading files.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).parent
OTHERS = {"tf.data": "(a) tf.data, plain", "keras": "(b) Keras, from directory", "torch": "(c) PyTorch DataLoader"}
NAMES = {
    "packed": "packed files",
    "folder": "folder",
    "memory": "folder, cache memory",
    **OTHERS,
    "decode-files": "(d) decoding the files alone",
}
Figures = dict[str, list[float]]


def main() -> None:
    """Make the data, measure in alternation, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--contenders", nargs="+", choices=list(NAMES), default=list(NAMES), metavar="NAME")
    parser.add_argument("--steps", type=int, default=40, help="steps of each DCGAN run; 0: none")
    parser.add_argument(
        "--records",
        type=int,
        nargs="+",
        default=[1000, 100_000],
        help="set sizes for the memory; 0: none",
    )
    parser.add_argument("--torch-python", default=sys.executable, help="Python with torch and Pillow")
    parser.add_argument("--json", type=Path, help="file for all figures")
    given = parser.parse_args()
    contenders = [name for name in given.contenders if name != "torch" or _has_torch(given.torch_python)]
    if contenders != given.contenders:
        print(f"{given.torch_python} has no torch: (c) is left out", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="hvdgan-input-") as made:
        folder = Path(made)
        make_images(folder / "images", given.images)
        prepare(folder / "images", folder / "packed", 64)
        results: dict[str, Any] = {}
        for cores in given.cores:
            measure = _measuring(folder, cores, given.seconds, given.torch_python)
            results[f"images_per_sec, {cores} cores"] = in_turn(contenders, measure, given.rounds)
        if given.steps:
            data = {"synthetic": "synthetic", "packed": str(folder / "packed")}
            results["dcgan step_seconds"] = in_turn(
                list(data),
                lambda name, number: train(data[name], folder / f"{name} {number}", given.steps),
                given.rounds,
            )
        if any(given.records):
            results["resident megabytes"] = {
                f"{count:,}": [resident(folder / f"records-{count}", count)] for count in given.records
            }
    results["verdicts"] = verdicts(results)
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def make_images(folder: Path, count: int) -> None:
    """Write crops of two photographs, 256 x 256, as JPEG files of quality 90 (about 25 kB), into one subfolder."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    rng = np.random.default_rng(0)
    (folder / "all").mkdir(parents=True)
    for number in range(count):
        photograph = photographs[number % 2]
        side = int(rng.integers(256, min(photograph.size) + 1))
        left, top = (int(rng.integers(0, length - side + 1)) for length in photograph.size)
        crop = photograph.resize((256, 256), box=(left, top, left + side, top + side))
        crop.save(folder / "all" / f"{number:06d}.jpg", quality=90)


def prepare(source: Path, target: Path, image_size: int) -> None:
    """Pack images with hvdgan.prepare."""
    _run([sys.executable, "-m", "hvdgan.prepare", source, target, "--image-size", image_size, "--shards", 8])


def in_turn(names: Sequence[str], measure: Callable[[str, int], float], rounds: int) -> Figures:
    """Measure each contender once per round, so that disturbances affect all; every other round runs backwards."""
    figures: Figures = {name: [] for name in names}
    for number in range(rounds):
        for name in names if number % 2 == 0 else list(reversed(names)):
            figures[name].append(measure(name, number))
            print(f"round {number + 1}: {NAMES.get(name, name).strip()}: {figures[name][-1]:.4g}", file=sys.stderr)
    return figures


def train(data: str, run_dir: Path, steps: int) -> float:
    """Measure the median seconds of a step of DCGAN at 64 pixels, including the wait for images."""
    flags = f"--recipe dcgan --image-size 64 --global-batch-size 16 --max-steps {steps} --log-every 10 --sample-every 0"
    command = [sys.executable, "-m", "hvdgan.train", *flags.split(), "--checkpoint-every", "0", "--holdout", "0"]
    _run([*command, "--data", data, "--run-dir", run_dir])
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    seconds = [record["step_seconds"] for record in records if "step_seconds" in record]
    return statistics.median(seconds[1:] or seconds)  # the first record includes the time to fill the queue


def resident(folder: Path, count: int) -> float:
    """Measure the resident megabytes of a process after 500 batches from a set of `count` small images."""
    folder.mkdir()
    shades = np.arange(count, dtype=np.uint32)[:, None, None, None] * 7 % 251
    ramp = np.arange(16, dtype=np.uint32)[None, :, None, None] * np.array([1, 2, 3], np.uint32)
    np.save(folder / "a.npy", np.broadcast_to((shades + ramp) % 256, (count, 16, 16, 3)).astype(np.uint8))
    prepare(folder / "a.npy", folder / "packed", 16)
    return json.loads(_run([sys.executable, HERE / "input_contenders.py", "resident", folder / "packed"]))["RSS"]


def verdicts(results: dict[str, Any]) -> dict[str, str]:
    """Compare the figures with the goals."""
    found = {}
    for title, figures in results.items():
        median = {name: statistics.median(values) for name, values in figures.items()}
        if title.startswith("images_per_sec"):
            best = max((median[name] for name in OTHERS if name in median), default=0.0)
            if best and "packed" in median:
                found[f"{title}: packed files / best of a to c (goal 1.5)"] = f"{median['packed'] / best:.2f}"
        if title.startswith("dcgan"):
            found["DCGAN step: packed files / synthetic (goal 1.03)"] = f"{median['packed'] / median['synthetic']:.3f}"
        if title.startswith("resident"):
            least, *_, most = median.values()
            found["resident memory: most records / fewest (goal: no growth)"] = f"{most / least:.3f}"
    return found


def table(results: dict[str, Any]) -> str:
    """Format all figures as Markdown."""
    lines = []
    for title, figures in results.items():
        if title == "verdicts":
            continue
        lines += ["", f"| {title} | median | least | greatest |", "|---|---|---|---|"]
        for name, values in figures.items():
            numbers = (statistics.median(values), min(values), max(values))
            lines.append(
                " | ".join([f"| {NAMES.get(name, name).strip()}", *(f"{value:.4g}" for value in numbers)]) + " |"
            )
    lines += ["", *(f"- {what}: {value}" for what, value in results["verdicts"].items())]
    return "\n".join(lines)


def _measuring(folder: Path, cores: int, seconds: float, torch_python: str) -> Callable[[str, int], float]:
    def measure(name: str, number: int) -> float:
        python = torch_python if name == "torch" else sys.executable
        command = [python, HERE / "input_contenders.py", name, folder, "--cores", cores, "--seconds", seconds]
        return json.loads(_run(command))

    return measure


def _has_torch(python: str) -> bool:
    return subprocess.run([python, "-c", "import torch, PIL"], capture_output=True, check=False).returncode == 0


def _run(command: Sequence[Any]) -> str:
    """Run a command and return its last line; if it fails, exit with its errors."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(str(word) for word in command)}: exit code {done.returncode}\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


if __name__ == "__main__":
    main()
