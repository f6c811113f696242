"""Measures one way of reading images in a process of its own; input.py starts it.

Prints the images per second as a JSON number. TensorFlow is loaded only after the process was bound to its cores.
"""

import argparse
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

BATCH = 64
SIZE = 64


def ours(data: Path, cores: int, cache: str = "none") -> Iterator[object]:
    """Read as hvdgan.train does, with one rank."""
    from hvdgan.cli.config import Config
    from hvdgan.data import cached, open_source

    source = cached(open_source(Config(data=str(data), image_size=SIZE)), cache)
    if cache == "memory":
        for begin in range(0, len(source), BATCH):
            source.fetch_batch(_range(begin, min(begin + BATCH, len(source))))
    return _batches(source, cores)


def plain(data: Path, cores: int) -> Iterator[object]:
    """Read with tf.data in its usual form."""
    import tensorflow as tf

    def read(path: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.cast(tf.image.resize(image, (SIZE, SIZE)), tf.uint8)

    files = tf.data.Dataset.list_files(str(data / "*" / "*.jpg")).repeat()
    return iter(files.map(read, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE))


def keras_folder(data: Path, cores: int) -> Iterator[object]:
    """Read with keras.utils.image_dataset_from_directory."""
    import keras

    made = keras.utils.image_dataset_from_directory(
        str(data), labels=None, image_size=(SIZE, SIZE), batch_size=BATCH, verbose=False
    )
    return iter(made.repeat())


def torch_loader(data: Path, cores: int) -> Iterator[object]:
    """Read with PyTorch's DataLoader and Pillow, one worker per core."""
    import numpy as np
    import torch
    from PIL import Image

    files = sorted(data.glob("*/*.jpg"))

    class Images(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, index: int) -> torch.Tensor:
            with Image.open(files[index]) as image:
                pixels = np.array(image.convert("RGB").resize((SIZE, SIZE)))
            return torch.from_numpy(pixels).permute(2, 0, 1)

    loader = torch.utils.data.DataLoader(
        Images(), BATCH, shuffle=True, num_workers=cores, drop_last=True, persistent_workers=True
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def files_in_memory(data: Path) -> list[bytes]:
    """Read the original files."""
    return [path.read_bytes() for path in sorted(data.glob("*/*.jpg"))]


def decode_alone(encoded: list[bytes], cores: int, seconds: float) -> float:
    """Measure the images per second of decoding alone: one thread per core, each with graphs of 64 operations."""
    import tensorflow as tf

    @tf.function(autograph=False, input_signature=[tf.TensorSpec((BATCH,), tf.string)])
    def decode(some: tf.Tensor) -> tf.Tensor:
        return tf.stack(
            [tf.io.decode_jpeg(one, channels=3, dct_method="INTEGER_ACCURATE") for one in tf.unstack(some, BATCH)]
        )

    batches = [tf.constant(encoded[begin : begin + BATCH]) for begin in range(0, len(encoded) - BATCH + 1, BATCH)]
    decode(batches[0])
    done = [0] * cores
    end = time.perf_counter() + seconds

    def work(thread: int) -> None:
        for batch in itertools.cycle(batches):
            if time.perf_counter() > end:
                return
            decode(batch)
            done[thread] += BATCH

    begin = time.perf_counter()
    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(cores)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - begin)


def rate(batches: Iterator[object], seconds: float) -> float:
    """Measure the images per second after a warm-up."""
    for end in (
        time.perf_counter() + min(1.0, seconds),
        None,
    ):  # the warm-up also lets tf.data tune itself
        begin, count = time.perf_counter(), 0
        while time.perf_counter() < (end or begin + seconds):
            next(batches)
            count += BATCH
    return count / (time.perf_counter() - begin)


def memory(data: Path, cores: int) -> dict[str, float]:
    """Measure the resident megabytes after 500 batches."""
    from hvdgan.cli.config import Config
    from hvdgan.data import open_source

    source = open_source(Config(data=str(data), image_size=16))
    with _batches(source, cores) as batches:
        for _ in range(500):
            next(batches)
        lines = Path("/proc/self/status").read_text().splitlines()
    return {line[2:5]: int(line.split()[1]) / 1024 for line in lines if line.startswith(("VmRSS", "VmHWM"))}


def _batches(source: object, cores: int) -> Any:
    """Open the batches of one rank."""
    from hvdgan.data.batches import Batches

    options = {"seed": 0, "global_batch_size": BATCH, "places": (0, BATCH), "position": 0, "max_bad_fraction": 0.0}
    return Batches(source, **options, threads=cores, prefetch=2, device=None)


def _range(begin: int, end: int) -> object:
    import numpy as np

    return np.arange(begin, end)


def main() -> None:
    """Bind the process to its cores, then measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contender")
    parser.add_argument("folder", type=Path, help="folder that holds the folders images and packed")
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    given = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.cores])
    images = given.folder / "images"
    timed: dict[str, Callable[[], Iterator[object]]] = {
        "folder": lambda: ours(images, given.cores),
        "packed": lambda: ours(given.folder / "packed", given.cores),
        "memory": lambda: ours(images, given.cores, "memory"),
        "tf.data": lambda: plain(images, given.cores),
        "keras": lambda: keras_folder(images, given.cores),
        "torch": lambda: torch_loader(images, given.cores),
    }
    if given.contender == "resident":
        print(json.dumps(memory(given.folder, given.cores)))
    elif given.contender in timed:
        print(json.dumps(rate(timed[given.contender](), given.seconds)))
    else:
        print(json.dumps(decode_alone(files_in_memory(images), given.cores, given.seconds)))


if __name__ == "__main__":
    main()
