"""Measures the speedup of hvdgan.prepare with a second process: one against two, in alternation.

    python benchmarks/prepare.py

The command converts photograph-like JPEG files of 256 x 256 pixels to shards of 128 x 128. The time includes its start,
the listing of the folder and the checksums. The two commands take turns, so that disturbances affect both; the ratio is
that of the medians. The bytes are compared as well. This takes about 6 minutes on two cores.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image


def main() -> None:
    """Make the images, convert them again and again, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=8000)
    parser.add_argument("--width", type=int, default=256, help="width and height of the original images")
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--shards", type=int, default=64)
    parser.add_argument("--encoding", default="png", choices=["png", "jpeg", "raw"])
    parser.add_argument("--workers", type=int, default=2, help="number of processes to compare with one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="folder on the disk to measure; default: a temporary one")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hvdgan-prepare-", dir=given.folder))
    try:
        images = folder / "images"
        write_images(images, given.images, given.width)
        seconds: dict[int, list[float]] = {1: [], given.workers: []}
        checksums = set()
        for repeat in range(given.repeats + 1):
            for workers, found in seconds.items():
                taken, checksum = convert(images, folder / "shards", workers, given)
                checksums.add(checksum)
                if repeat:  # the first turn warms the page cache
                    found.append(taken)
    finally:
        shutil.rmtree(folder)
    medians = {workers: statistics.median(found) for workers, found in seconds.items()}
    for workers, found in seconds.items():
        print(
            f"{workers} worker(s): median {medians[workers]:.2f} s ({min(found):.2f} to {max(found):.2f}, "
            f"{given.repeats} runs), {given.images / medians[workers]:.0f} images/s"
        )
    print(f"1 -> {given.workers} workers: {medians[1] / medians[given.workers]:.2f} times as fast")
    print("the bytes are the same" if len(checksums) == 1 else "THE BYTES DIFFER")


def write_images(folder: Path, count: int, width: int) -> None:
    """Write JPEG files of smooth colours with a little noise, about as large as photographs."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, width), Image.Resampling.BICUBIC), np.int16)
        pixels = np.clip(smooth + rng.integers(-12, 13, smooth.shape), 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:06d}.jpg", quality=90)


def convert(images: Path, target: Path, workers: int, given: argparse.Namespace) -> tuple[float, str]:
    """Run the command; returns its seconds and the checksums of its output, which is removed."""
    flags = {
        "image-size": given.image_size,
        "shards": given.shards,
        "encoding": given.encoding,
        "workers": workers,
    }
    words = [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]
    command = [sys.executable, "-m", "hvdgan.prepare", str(images), str(target), *words]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    taken = time.perf_counter() - begin
    checksum = json.dumps(json.loads((target / "manifest.json").read_text())["files"])
    shutil.rmtree(target)
    return taken, checksum


if __name__ == "__main__":
    main()
