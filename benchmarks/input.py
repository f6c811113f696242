"""Measures how fast data are read, against other readers, on one and two cores: python benchmarks/input.py

Pictures are 256 x 256 JPEG files that become 64 x 64 pixels, in batches of 64: crops of the two photographs of
scikit-learn. Arrays are fields of 64 x 64 x 8 float32 numbers, in shuffled batches of 32, from .npy, HDF5 (one sample
per chunk, as it is and by gzip, and contiguous) and packed files; a bare read takes one sample after another from NumPy
or h5py and stacks them. In a round each contender runs once, in a process of its own that is bound to its cores;
samples per second are counted by the processor's time and by the clock. All files are in the system's page cache.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
SIZE, SHAPE = 64, (64, 64, 8)
PICTURES = ("folder", "packed", "tf.data", "keras", "torch", "decode")
"""contenders for pictures; decode: decoding the files alone, the most that is possible"""
ARRAYS = {"npy": "a.npy", "hdf5": "a.h5:images", "gzip": "g.h5:images", "contiguous": "c.h5:images", "packed": "packed"}
READERS = ("hvdgan", "bare", "generator")
Batches = Iterator[Any]


def main() -> None:
    """Make the data, measure in turn, print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000, help="number of JPEG files")
    parser.add_argument("--megabytes", type=int, default=400, help="size of the arrays")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each measurement")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--torch-python", default=sys.executable, help="Python with torch and Pillow")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--one", nargs=4, metavar=("HOW", "PATH", "CORES", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(one(given.one[0], given.one[1], int(given.one[2]), float(given.one[3]))))
        return
    figures: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory(prefix="hvdgan-input-") as made:
        folder = Path(made)
        make_pictures(folder, given.images)
        make_arrays(folder / "arrays", given.megabytes)
        asked = [
            (f"picture, {how}", how, folder / ("packed" if how == "packed" else "images"), c)
            for c in given.cores
            for how in PICTURES
        ]
        for kind, file in ARRAYS.items():
            for how in READERS[: 2 if kind == "packed" else 3]:
                asked.append((f"array, {kind}, {how}", f"array {how}", folder / "arrays" / file, given.cores[0]))
        for number in range(given.rounds):
            for name, how, path, cores in asked[:: 1 if number % 2 == 0 else -1]:
                python = given.torch_python if how == "torch" else sys.executable
                found = run(python, __file__, "--one", how, path, cores, given.seconds, may_fail=how == "torch")
                if found:
                    figures.setdefault(f"{name}, {cores} cores", []).append(json.loads(found))
    print(table(figures))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


def make_pictures(folder: Path, count: int) -> None:
    """Write JPEG files of quality 90 (about 25 kB) into images/all, and pack them."""
    from sklearn.datasets import load_sample_images

    photographs = [Image.fromarray(image) for image in load_sample_images().images]
    random = np.random.default_rng(0)
    (folder / "images" / "all").mkdir(parents=True)
    for number in range(count):
        photograph = photographs[number % 2]
        side = int(random.integers(256, min(photograph.size) + 1))
        left, top = (int(random.integers(0, length - side + 1)) for length in photograph.size)
        crop = photograph.resize((256, 256), box=(left, top, left + side, top + side))
        crop.save(folder / "images" / "all" / f"{number:06d}.jpg", quality=90)
    run(sys.executable, "-m", "hvdgan.prepare", folder / "images", folder / "packed", "--image-size", SIZE)


def make_arrays(folder: Path, megabytes: int) -> None:
    """Write the same numbers to every kind of file: whole ones, since gzip finds nothing in random fractions."""
    import h5py

    folder.mkdir()
    count = megabytes * 10**6 // (4 * int(np.prod(SHAPE)))
    numbers = np.random.default_rng(0).integers(0, 99, (count, *SHAPE)).astype(np.float32)
    np.save(folder / "a.npy", numbers)
    options = {"a": {"chunks": (1, *SHAPE)}, "g": {"chunks": (1, *SHAPE), "compression": "gzip"}, "c": {}}
    for name, how in options.items():
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file.create_dataset("images", data=numbers, **how)
    run(sys.executable, "-m", "hvdgan.prepare", folder / "a.npy", folder / "packed")


def one(how: str, path: str, cores: int, seconds: float) -> Any:
    """Measure one contender: samples per second by the processor's time and by the clock."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    readers: dict[str, Callable[[str, int], Batches]] = {
        **dict.fromkeys(("folder", "packed"), pictures),
        "array hvdgan": arrays,
        "tf.data": plain,
        "keras": keras_folder,
        "torch": torch_loader,
        "decode": decoding,
        "array bare": bare,
        "array generator": generator,
    }
    batches, batch = readers[how](path, cores), 32 if how.startswith("array") else 64
    for duration in (min(1.0, seconds), seconds):  # first a warm-up, in which tf.data tunes itself
        begin, worked, count = time.perf_counter(), time.process_time(), 0
        while time.perf_counter() < begin + duration:
            next(batches)
            count += batch
    return [count / (time.process_time() - worked), count / (time.perf_counter() - begin)]


def pictures(path: str, cores: int) -> Batches:
    """Read pictures as hvdgan.train does, with one rank."""
    from hvdgan.data import open_source
    from hvdgan.settings.config import Config

    return batches_of(open_source(Config(data=path, image_size=SIZE)), 64, cores)


def arrays(path: str, cores: int) -> Batches:
    """Read arrays as hvdgan.train does, with one rank."""
    from hvdgan.data import open_source
    from hvdgan.settings.config import Config
    from hvdgan.settings.data import ArrayConfig

    source = open_source(Config(data=path, arrays=ArrayConfig(values="none")))
    return batches_of(source.mapped(source.values), 32, cores)


def batches_of(source: Any, size: int, cores: int) -> Batches:
    """Open the batches of a run."""
    from hvdgan.data import batches

    where = {"seed": 0, "global_batch_size": size, "places": (0, size), "position": 0, "max_bad_fraction": 0.0}
    return batches.Batches(source, **where, threads=cores, prefetch=2, device=None)


def plain(path: str, cores: int) -> Batches:
    """Read with tf.data in its usual form."""
    import tensorflow as tf

    def read(file: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(tf.io.read_file(file), channels=3)
        return tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)

    files = tf.data.Dataset.list_files(f"{path}/*/*.jpg").repeat()
    return iter(files.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(64).prefetch(tf.data.AUTOTUNE))


def keras_folder(path: str, cores: int) -> Batches:
    """Read with keras.utils.image_dataset_from_directory."""
    import keras

    sizes = {"image_size": (SIZE, SIZE), "batch_size": 64}
    return iter(keras.utils.image_dataset_from_directory(path, labels=None, verbose=False, **sizes).repeat())


def torch_loader(path: str, cores: int) -> Batches:
    """Read with PyTorch's DataLoader and Pillow, one worker per core."""
    import torch

    files = sorted(Path(path).glob("*/*.jpg"))

    class Images(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> torch.Tensor:
            with Image.open(files[index]) as image:
                pixels = np.array(image.convert("RGB").resize((SIZE, SIZE)))
            return torch.from_numpy(pixels).permute(2, 0, 1)

    how = {"shuffle": True, "num_workers": cores, "drop_last": True, "persistent_workers": True}
    loader = torch.utils.data.DataLoader(Images(), 64, **how)
    return itertools.chain.from_iterable(itertools.repeat(loader))


def decoding(path: str, cores: int) -> Batches:
    """Decode the files, which are in memory, and do nothing else."""
    import tensorflow as tf

    files = [file.read_bytes() for file in sorted(Path(path).glob("*/*.jpg"))]
    data = tf.data.Dataset.from_tensor_slices(files).repeat()
    decoded = data.map(lambda file: tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE"), cores)
    return iter(decoded.batch(64).prefetch(2))


def bare(path: str, cores: int) -> Batches:
    """Read sample after sample into a batch, and do nothing else."""
    import h5py

    file, _, name = path.partition(":")
    if Path(file).is_dir():
        parts = [h5py.File(each)["images"] for each in sorted(Path(file).glob("*.h5"))]
    else:
        parts = [np.load(file, mmap_mode="r") if file.endswith(".npy") else h5py.File(file)[name]]
    places = [(part, place) for part in parts for place in range(len(part))]
    random = np.random.default_rng(0)
    order = itertools.chain.from_iterable(random.permutation(len(places)) for _ in itertools.count())
    while True:
        chosen = [places[next(order)] for _ in range(32)]
        yield np.stack([part[place] for part, place in chosen])


def generator(path: str, cores: int) -> Batches:
    """Read as most people do with tf.data: a Python generator of samples, batched."""
    import tensorflow as tf

    def samples() -> Iterator[np.ndarray]:
        for batch in bare(path, cores):
            yield from batch

    signature = tf.TensorSpec(SHAPE, tf.float32)
    return iter(tf.data.Dataset.from_generator(samples, output_signature=signature).batch(32).prefetch(2))


def run(*command: object, may_fail: bool = False) -> str:
    """Run a command and return its last line; if it fails, exit with its errors."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode and not may_fail:
        raise SystemExit(f"{' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr}")
    return (done.stdout.splitlines() or [""])[-1]


def table(figures: dict[str, list[Any]]) -> str:
    """Format the medians with their ranges as Markdown."""
    lines = ["| what | samples per processor second | samples per second |", "|---|---|---|"]
    for name, found in figures.items():
        columns = list(zip(*found, strict=True))
        cells = [f"{statistics.median(each):,.0f} ({min(each):,.0f} to {max(each):,.0f})" for each in columns]
        lines.append(f"| {' | '.join([name, *cells])} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
