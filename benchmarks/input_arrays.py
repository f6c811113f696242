"""Measures how fast arrays are read, against bare NumPy and h5py reads and tf.data.Dataset.from_generator, on one core.

    python benchmarks/input_arrays.py --json input_arrays.json      6 minutes

Fields of 64 x 64 x 8 and volumes of 32 x 32 x 32 float32 numbers are read in shuffled batches of 32 from .npy, HDF5
(one sample per chunk, and contiguous) and packed shards. Every figure is the median of the rounds, in samples per
second, with the smallest and the largest. In a round each contender runs once, in a process of its own that is bound
to one core. After the first round all files are in the system's page cache. The memory is that of the process itself
(RssAnon) after 300 batches of a sparse .npy or HDF5 file of 1 and of 20 GB.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 32
SHAPES = {"fields": (64, 64, 8), "volumes": (32, 32, 32, 1)}
FILES = {"npy": "a.npy", "hdf5": "a.h5:images", "hdf5, contiguous": "c.h5:images", "shards": "shards"}


def main() -> None:
    """Make the data, measure in alternation, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="size of each array")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--gigabytes", type=int, nargs="*", default=[1, 20], help="sizes of the sparse files")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--one", nargs=3, metavar=("HOW", "DATA", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        print(json.dumps(measured(given.one[0], given.one[1], float(given.one[2]))))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hvdgan-arrays-") as made:
        for name, shape in SHAPES.items():
            folder = Path(made) / name
            make(folder, shape, given.megabytes)
            for number in range(given.rounds):
                for kind, file in list(FILES.items())[:: 1 if number % 2 == 0 else -1]:
                    for how in ("hvdgan", "bare", "generator") if kind != "shards" else ("hvdgan",):
                        figures = results.setdefault(f"{name}, {kind}", {}).setdefault(how, [])
                        figures.append(started(how, folder / file, given.seconds))
        for size in given.gigabytes:
            for kind in ("npy", "h5"):
                file = sparse(Path(made) / f"{size}.{kind}", size)
                results.setdefault("megabytes of the process", {})[f"{kind}, {size} GB"] = [started("memory", file, 0)]
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def make(folder: Path, shape: tuple[int, ...], megabytes: int) -> None:
    """Write the same numbers to every kind of file."""
    import h5py

    folder.mkdir()
    count = megabytes * 10**6 // (4 * int(np.prod(shape)))
    numbers = np.random.default_rng(0).uniform(-1, 1, (count, *shape)).astype(np.float32)
    np.save(folder / "a.npy", numbers)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("images", data=numbers, chunks=(1, *shape))
    with h5py.File(folder / "c.h5", "w") as file:
        file.create_dataset("images", data=numbers)
    command = [sys.executable, "-m", "hvdgan.prepare", folder / "a.npy", folder / "shards", "--shards", 8]
    run([*command, "--encoding", "raw"])


def sparse(path: Path, gigabytes: int) -> Path:
    """A file of zeros that takes no room on the disk."""
    import h5py

    shape = (gigabytes * 10**9 // (4 * 64 * 64 * 8), 64, 64, 8)
    if path.suffix == ".npy":
        np.lib.format.open_memmap(path, "w+", np.float32, shape).flush()
        return path
    with h5py.File(path, "w") as file:
        made = file.create_dataset("images", shape, np.float32)
        made[-1] = 0.0  # the place of contiguous numbers is chosen when the first one is written
    return Path(f"{path}:images")


def measured(how: str, data: str, seconds: float) -> float:
    """Samples per second of one way of reading, or the megabytes of the process after 300 batches."""
    batches = {"hvdgan": ours, "memory": ours, "bare": bare, "generator": generator}[how](data)
    if how == "memory":
        for _ in range(300):
            next(batches)
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))
    for end in (time.perf_counter() + min(1.0, seconds), None):  # first a warm-up
        begin, count = time.perf_counter(), 0
        while time.perf_counter() < (end or begin + seconds):
            next(batches)
            count += BATCH
    return count / (time.perf_counter() - begin)


def ours(data: str) -> Iterator[object]:
    """Read as hvdgan.train does, with one rank and one thread."""
    from hvdgan.cli.config import Config
    from hvdgan.cli.data_config import ArrayConfig
    from hvdgan.data import open_source
    from hvdgan.data.arrays.mapped import mapped
    from hvdgan.data.pipeline import Batches

    source = open_source(Config(data=data, arrays=ArrayConfig(values="none")))
    options: dict[str, Any] = {"seed": 0, "global_batch_size": BATCH, "places": (0, BATCH), "position": 0}
    return Batches(mapped(source, source.values), **options, max_bad_fraction=0.0, threads=1, prefetch=2, device=None)


def opened(data: str) -> Any:
    """The array as NumPy or h5py gives it."""
    import h5py

    file, _, name = data.partition(":")
    return np.load(file, mmap_mode="r") if file.endswith(".npy") else h5py.File(file)[name]


def order(count: int) -> Iterator[int]:
    """Shuffled numbers without end."""
    numbers = np.random.default_rng(0)
    while True:
        yield from numbers.permutation(count)


def bare(data: str) -> Iterator[object]:
    """Read sample after sample into a batch, and do nothing else."""
    array = opened(data)
    places = order(len(array))
    while True:
        yield np.stack([array[next(places)] for _ in range(BATCH)])


def generator(data: str) -> Iterator[object]:
    """Read as most people do with tf.data: a Python generator of samples, batched."""
    import tensorflow as tf

    array = opened(data)

    def samples() -> Iterator[np.ndarray]:
        for place in order(len(array)):
            yield array[place]

    signature = tf.TensorSpec(array.shape[1:], tf.float32)
    return iter(tf.data.Dataset.from_generator(samples, output_signature=signature).batch(BATCH).prefetch(2))


def started(how: str, data: Path, seconds: float) -> float:
    """Measure in a process of its own."""
    figure = json.loads(run([sys.executable, __file__, "--one", how, data, seconds]))
    print(f"{data}: {how}: {figure:.4g}", file=sys.stderr)
    return figure


def run(command: list[Any]) -> str:
    """Run a command and return its last line; if it fails, exit with its errors."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


def table(results: dict[str, Any]) -> str:
    """Format all figures as Markdown, with the ratios to the goals."""
    lines = ["| data | reader | median | least | greatest | hvdgan / it |", "|---|---|---|---|---|---|"]
    for title, figures in results.items():
        median: dict[str, float] = {how: statistics.median(values) for how, values in figures.items()}
        for how, values in figures.items():
            # Shards hold the same numbers as the .npy file.
            base = results[title.replace("shards", "npy")] if title.endswith("shards") else {}
            ratio = f"{median['hvdgan'] / median[how]:.2f}" if how != "hvdgan" and "hvdgan" in median else ""
            if base:
                ratio = f"{median[how] / statistics.median(base['bare']):.2f} of bare .npy"
            numbers = " | ".join(f"{number:.4g}" for number in (median[how], min(values), max(values)))
            lines.append(f"| {title} | {how} | {numbers} | {ratio} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
