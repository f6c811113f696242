"""Pictures of a run as data: URIs, re-encoded, so that neither their size nor their contents can surprise."""

import base64
import dataclasses
import io
import itertools
import warnings
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from hvdgan.runs.lines import Folder

_LARGEST_FILE = 1 << 27
_MOST_PIXELS = 1 << 26
_SIDES = (900, 600, 400, 250)
_QUALITIES = (80, 45)


@dataclasses.dataclass(frozen=True)
class Picture:
    """A data: URI of a PNG or a WebP, and the size of the file that it was made of (pixels)."""

    uri: Markup
    width: int
    height: int


def load(folder: Folder, name: str, most: int) -> Picture | None:
    """Decode a PNG of a run folder, and encode it anew; None, with a remark, if that is not possible."""
    path = folder.find(name)
    if path is None:
        return None
    try:
        image, size = _decoded(path)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, MemoryError) as error:
        folder.remarks.append(f"{name} cannot be decoded, and is not shown: {error}")
        return None
    kind, data = _encoded(image, most, try_png=path.stat().st_size < 2 * most)
    return Picture(Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}"), *size)


def _decoded(path: Path) -> tuple[Image.Image, tuple[int, int]]:
    """Return a picture that is not too large, and the size of the file's."""
    if (size := path.stat().st_size) > _LARGEST_FILE:
        raise ValueError(f"{size:,} bytes are too many")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        with Image.open(path, formats=("PNG",)) as image:
            if image.width * image.height > _MOST_PIXELS:
                raise ValueError(f"{image.width:,} x {image.height:,} pixels are too many")
            plain = image.convert("L" if image.mode in ("1", "L", "I;16", "I") else "RGB")
    pixels = plain.size
    plain.thumbnail((_SIDES[0], _SIDES[0]), Image.Resampling.LANCZOS)
    return plain, pixels


def _encoded(image: Image.Image, most: int, *, try_png: bool) -> tuple[str, bytes]:
    """Return a PNG, which keeps every pixel, or a WebP if that is too large, of fewer pixels if it must be."""
    file = io.BytesIO()
    if try_png:
        image.save(file, "png")
        if file.tell() <= most:
            return "png", file.getvalue()
    for side, quality in itertools.product(_SIDES, _QUALITIES):
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        file = io.BytesIO()
        image.save(file, "webp", quality=quality, method=2)
        if file.tell() <= most:
            break
    return "webp", file.getvalue()
