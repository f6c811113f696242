"""Small folders of images, and hvdgan.prepare in this process."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from hvdgan.data.packed_files import INDEX
from hvdgan.prepare import main


def write_images(folder: Path, count: int = 10, *, width: int = 12, height: int = 10, classes: int = 2) -> Path:
    """PNG, JPEG and grey images of noise, class by class; returns the folder."""
    rng = np.random.default_rng(7)
    for number in range(count):
        path = folder / f"class {number % classes}" / f"{number:03d}.{('png', 'jpg', 'bmp')[number % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
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


def zipped(folder: Path, target: Path, prefix: str = "", method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip archive of a folder."""
    with zipfile.ZipFile(target, "w", method) as archive:
        for name, content in bytes_of(folder).items():
            archive.writestr(prefix + name, content)
    return target


def index_of(folder: Path) -> dict[str, Any]:
    """What a folder of packed samples says about itself."""
    return json.loads((folder / INDEX).read_text())
