"""Small folders of images, arrays in files, and hvdgan.prepare of them in this process."""

import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image

from hvdgan.data.packed_files import INDEX
from hvdgan.prepare import main

RNG = np.random.default_rng(0)


def write_images(folder: Path, count: int = 10) -> Path:
    """PNG, JPEG and grey images of noise, class by class; returns the folder."""
    rng = np.random.default_rng(7)
    for number in range(count):
        path = folder / f"class {number % 2}" / f"{number:03d}.{('png', 'jpg', 'bmp')[number % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (10, 12, 3), np.uint8)
        Image.fromarray(pixels).convert("L" if number % 5 == 4 else "RGB").save(path)
    return folder


def prepare(source: Path, target: Path, *flags: str) -> Path:
    """Convert with one process, which must succeed; returns the new folder."""
    defaults = {"--image-size": "8", "--fit": "crop", "--shards": "3", "--workers": "1"}
    words = [word for flag, value in defaults.items() if flag not in flags for word in (flag, value)]
    assert main([str(source), str(target), *words, *flags]) == 0
    return target


def bytes_of(folder: Path) -> dict[str, bytes]:
    """All files of a folder and below."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def damage(path: Path, name: str = "images", number: int = 0) -> None:
    """Change a byte of one sample in a packed file."""
    with h5py.File(path) as file:
        place = file[name].id.get_chunk_info(number).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 1] ^= 1
    path.write_bytes(content)


def zipped(folder: Path, target: Path, prefix: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip archive of a folder."""
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in bytes_of(folder).items():
            archive.writestr(prefix + name, content)
    return target


def index_of(folder: Path) -> dict[str, Any]:
    """What a folder of packed samples says about itself."""
    return json.loads((folder / INDEX).read_text())


def pack(source: Path | str, target: Path, *flags: str) -> Path:
    """Pack arrays into three files, which must succeed; returns the new folder."""
    assert main([str(source), str(target), "--shards", "3", "--workers", "1", *flags]) == 0
    return target


def fields(folder: Path, count: int = 20) -> Path:
    """An .npz with samples, inputs, classes, conditions and constants."""
    path = folder / "fields.npz"
    np.savez(
        path,
        images=RNG.normal(size=(count, 6, 4, 2)).astype(np.float32),
        coarse=RNG.integers(0, 900, (count, 3, 2), np.int16),
        labels=np.arange(count) % 3,
        energy=RNG.uniform(1, 50, count),
        angle=RNG.uniform(0, 3, (count, 2)).astype(np.float32),
        ground=RNG.normal(size=(6, 4)),
    )
    return path


BESIDE = ("--pairs", "--inputs", "coarse", "--conditions", "energy,angle", "--constants", "ground")
