"""Measures how fast arrays are read, against bare NumPy and h5py reads and tf.data.Dataset.from_generator, on one core.

    python benchmarks/input_arrays.py --json input_arrays.json      10 minutes

Fields of 64 x 64 x 8 and volumes of 32 x 32 x 32 float32 numbers are read in shuffled batches of 32 from .npy, HDF5
(one sample per chunk, as it is and by gzip, and contiguous) and packed files. In a round each contender runs once, in
a process of its own that is bound to one core. Samples per second are counted twice, by the processor's time and by the
clock: other work on the machine changes the first one little, and without it both are the same.

A bare read takes one sample after another, and stacks them: of a mapped .npy file, or of HDF5 files by h5py. Each batch
is dropped before the next one is read, which is then written to the same memory, in the processor's cache; or the last
three are kept, as in training, where one is in use and two wait.

Files were read from the disk once before. What has only been written lies in the system's page cache in smaller pieces,
from which a system call reads half as fast. The memory is that of the process after 300 batches of 1 and of 20 GB: its
own (RssAnon), and the largest, mapped files included (VmHWM). It reads sparse .npy and HDF5 files, HDF5 of one sample
per chunk, as it is and by gzip, and packed files with and without gzip. `--rounds 0` measures the memory alone.
"""

import argparse
import collections
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 32
SHAPES = {"fields": (64, 64, 8), "volumes": (32, 32, 32, 1)}
KEPT = 3
FILES = {
    "npy": "a.npy",
    "hdf5": "a.h5:images",
    "hdf5, gzip": "g.h5:images",
    "hdf5, contiguous": "c.h5:images",
    "packed": "packed",
}
HOWS = ("hvdgan", "bare", "hvdgan, kept", "bare, kept", "generator")


def main() -> None:
    """Make the data, measure in alternation, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=400, help="size of each array")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--gigabytes", type=int, nargs="*", default=[1, 20], help="for the memory; also on the disk")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--one", nargs=3, metavar=("HOW", "DATA", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        print(json.dumps(measured(given.one[0], given.one[1], float(given.one[2]))))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hvdgan-arrays-") as made:
        for name, shape in SHAPES.items() if given.rounds else ():
            folder = Path(made) / name
            make(folder, shape, given.megabytes)
            for number in range(given.rounds):
                for kind, file in list(FILES.items())[:: 1 if number % 2 == 0 else -1]:
                    for how in HOWS if kind != "packed" else HOWS[:-1]:
                        figures = results.setdefault(f"{name}, {kind}", {}).setdefault(how, [])
                        figures.append(started(how, folder / file, given.seconds))
        for size in given.gigabytes:
            for kind, write in LARGE.items():
                (folder := Path(made) / "large").mkdir()
                file = write(folder, size * 10**9 // (4 * int(np.prod(LARGE_SHAPE))))
                results.setdefault("megabytes of the process", {})[f"{kind}, {size} GB"] = started("memory", file, 0)
                shutil.rmtree(folder)
    print(table(results))
    if given.json:
        given.json.write_text(json.dumps(results, indent=1) + "\n")


def make(folder: Path, shape: tuple[int, ...], megabytes: int) -> None:
    """Write the same numbers to every kind of file: whole ones, since gzip finds nothing in random fractions."""
    import h5py

    folder.mkdir()
    count = megabytes * 10**6 // (4 * int(np.prod(shape)))
    numbers = np.random.default_rng(0).integers(0, 99, (count, *shape)).astype(np.float32)
    np.save(folder / "a.npy", numbers)
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("images", data=numbers, chunks=(1, *shape))
    with h5py.File(folder / "g.h5", "w") as file:
        file.create_dataset("images", data=numbers, chunks=(1, *shape), compression="gzip")
    with h5py.File(folder / "c.h5", "w") as file:
        file.create_dataset("images", data=numbers)
    run([sys.executable, "-m", "hvdgan.prepare", folder / "a.npy", folder / "packed", "--shards", 8])
    for path in folder.rglob("*.*"):
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while file.read(2**20):
                pass


def sparse_npy(folder: Path, count: int) -> Path:
    """Zeros that take no room on the disk."""
    np.lib.format.open_memmap(folder / "a.npy", "w+", np.float32, (count, *LARGE_SHAPE)).flush()
    return folder / "a.npy"


def sparse_hdf5(folder: Path, count: int) -> Path:
    """The same in HDF5."""
    import h5py

    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("images", (count, *LARGE_SHAPE), np.float32)
        made[-1] = 0.0  # the place of contiguous numbers is chosen when the first one is written
    return folder / "a.h5:images"


def chunked_hdf5(folder: Path, count: int, compression: str | None = None) -> Path:
    """The same sample in every chunk, so that each takes room on the disk."""
    import h5py

    sample = np.random.default_rng(0).integers(0, 99, LARGE_SHAPE).astype(np.float32)
    content = sample.tobytes() if compression is None else zlib.compress(sample)
    with h5py.File(folder / "a.h5", "w") as file:
        shape, chunks = (count, *LARGE_SHAPE), (1, *LARGE_SHAPE)
        made = file.create_dataset("images", shape, np.float32, chunks=chunks, compression=compression)
        for place in range(count):
            made.id.write_direct_chunk((place, 0, 0, 0), content)
    return folder / "a.h5:images"


def gzip_hdf5(folder: Path, count: int) -> Path:
    """The same, compressed."""
    return chunked_hdf5(folder, count, "gzip")


def packed_files(folder: Path, count: int, compression: str = "none") -> Path:
    """Packed zeros, which take room on the disk if they are not compressed."""
    command = [sys.executable, "-m", "hvdgan.prepare", sparse_npy(folder, count), folder / "packed", "--shards", 16]
    run([*command, "--compression", compression])
    return folder / "packed"


def packed_gzip(folder: Path, count: int) -> Path:
    """The same, compressed."""
    return packed_files(folder, count, "gzip")


LARGE_SHAPE = SHAPES["fields"]
LARGE = {
    "sparse .npy": sparse_npy,
    "sparse HDF5": sparse_hdf5,
    "HDF5 in chunks": chunked_hdf5,
    "HDF5 in chunks, gzip": gzip_hdf5,
    "packed": packed_files,
    "packed, gzip": packed_gzip,
}


def measured(how: str, data: str, seconds: float) -> Any:
    """Samples per second of one way of reading, by the processor's time and by the clock; or own and largest memory."""
    reader, _, keeps = how.partition(", ")
    batches = {"hvdgan": ours, "memory": ours, "bare": bare, "generator": generator}[reader](data)
    last: collections.deque[object] = collections.deque(maxlen=KEPT if keeps else 0)
    if how == "memory":
        for _ in range(300):
            next(batches)
        lines = [line.split() for line in Path("/proc/self/status").read_text().splitlines()]
        return [int(line[1]) / 1024 for name in ("RssAnon:", "VmHWM:") for line in lines if line[0] == name]
    for duration in (min(1.0, seconds), seconds):  # first a warm-up
        begin, worked, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() < begin + duration:
            last.append(next(batches))
            count += BATCH
    return [count / (time.process_time() - worked), count / (time.perf_counter() - begin)]


def ours(data: str) -> Iterator[object]:
    """Read as hvdgan.train does, with one rank and one thread."""

    from hvdgan.cli.config import Config
    from hvdgan.cli.data_config import ArrayConfig
    from hvdgan.data import open_source
    from hvdgan.data.batches import Batches

    source = open_source(Config(data=data, arrays=ArrayConfig(values="none")))
    options: dict[str, Any] = {"seed": 0, "global_batch_size": BATCH, "places": (0, BATCH), "position": 0}
    return Batches(source.mapped(source.values), **options, max_bad_fraction=0.0, threads=1, prefetch=2, device=None)


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


def bare(data: str) -> Iterator[np.ndarray]:
    """Read sample after sample into a batch, and do nothing else."""
    count, read = single_reader(data)
    places = order(count)
    while True:
        yield np.stack([read(next(places)) for _ in range(BATCH)])


def single_reader(data: str) -> tuple[int, Callable[[int], np.ndarray]]:
    """The number of samples, and a function that reads one of them."""
    if not Path(data).is_dir():
        array = opened(data)
        return len(array), array.__getitem__
    parts = [opened(f"{path}:images") for path in sorted(Path(data).glob("*.h5"))]
    places = [(part, place) for part in parts for place in range(len(part))]
    return len(places), lambda number: places[number][0][places[number][1]]


def generator(data: str) -> Iterator[object]:
    """Read as most people do with tf.data: a Python generator of samples, batched."""
    import tensorflow as tf

    array = opened(data)

    def samples() -> Iterator[np.ndarray]:
        for place in order(len(array)):
            yield array[place]

    signature = tf.TensorSpec(array.shape[1:], tf.float32)
    return iter(tf.data.Dataset.from_generator(samples, output_signature=signature).batch(BATCH).prefetch(2))


def started(how: str, data: Path, seconds: float) -> Any:
    """Measure in a process of its own."""
    figures = json.loads(run([sys.executable, __file__, "--one", how, data, seconds]))
    print(f"{data}: {how}: {figures}", file=sys.stderr)
    return figures


def run(command: list[Any]) -> str:
    """Run a command and return its last line; if it fails, exit with its errors."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


def table(results: dict[str, Any]) -> str:
    """Format all figures as Markdown, with the ratios to the goals."""
    lines = [
        "| data | reader | median | least | greatest | hvdgan / it | by the clock |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, figures in results.items():
        if title.startswith("megabytes"):
            lines += [f"| {title} | {how} | {own:.4g} | | {most:.4g} | | |" for how, (own, most) in figures.items()]
            continue
        others = dict(figures)
        if title.endswith("packed"):  # they hold the same numbers as the .npy file
            npy = results[title.replace("packed", "npy")]
            others |= {f"{how}, of .npy": npy[how] for how in HOWS[1:] if not how.startswith("hvdgan")}
        for how, values in others.items():
            own = figures["hvdgan, kept" if ", kept" in how else "hvdgan"]
            rates, by_clock = zip(*values, strict=True)
            ratios = [
                f"{statistics.median(mine) / statistics.median(its):.2f}"
                for mine, its in zip(zip(*own, strict=True), (rates, by_clock), strict=True)
            ]
            numbers = [f"{number:.4g}" for number in (statistics.median(rates), min(rates), max(rates))]
            lines.append(f"| {' | '.join([title, how, *numbers, *(ratios if values is not own else ['', ''])])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
