"""Fills the templates of pages: everything is escaped, and only the page's own scripts may run.

Pictures of a run become data: URIs, re-encoded, so that neither their size nor their contents can surprise.
"""

import base64
import dataclasses
import hashlib
import io
import itertools
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from hvdgan import __version__
from hvdgan.files.wav import as_wav, load_wav
from hvdgan.pages.curves import COLOURS, Charts, script
from hvdgan.runs.folder import Folder

_FOLDER = Path(__file__).parent / "templates"


def fill(name: str, charts: Charts, **values: Any) -> str:
    """Fill a template; without charts the script that would draw them is left out."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [script()] if charts.count else []
    scripts.append((_FOLDER / "page.js").read_text(encoding="utf-8"))
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    environment.globals |= {
        "charts": charts,
        "colours": COLOURS,
        "scripts": [Markup(each) for each in scripts],
        "hashes": Markup(" ".join(f"'sha256-{digest}'" for digest in digests)),
        "style": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    text = environment.get_template(name).render(**values)
    return text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8


_SIDES = (900, 600, 400, 250)
_QUALITIES = (80, 45)


@dataclasses.dataclass(frozen=True)
class EmbeddedImage:
    """A data: URI of a PNG or a WebP, and the size of the file that it was made of (pixels)."""

    uri: Markup
    width: int
    height: int


def load(folder: Folder, name: str, most: int) -> EmbeddedImage | None:
    """Decode a PNG of a run folder, and encode it anew in about `most` bytes; None, with a remark, if it is broken."""
    if (path := folder.find(name)) is None:
        return None
    try:
        with Image.open(path, formats=("PNG",)) as file:
            image = file.convert("L" if file.mode in ("1", "L", "I;16", "I") else "RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        folder.remarks.append(f"{name} cannot be decoded, and is not shown: {error}")
        return None
    width, height = image.size
    image.thumbnail((_SIDES[0], _SIDES[0]), Image.Resampling.LANCZOS)
    kind, data = _encoded(image, most, try_png=path.stat().st_size < 2 * most)
    return EmbeddedImage(Markup(f"data:image/{kind};base64,{base64.b64encode(data).decode()}"), width, height)


def load_sound(folder: Folder, name: str, most: int) -> Markup | None:
    """Decode at most this many bytes of a WAV of a run folder, and encode them anew; None as for load()."""
    if (path := folder.find(name)) is None:
        return None
    try:
        data = as_wav(*load_wav(path, most))
    except (OSError, ValueError) as error:
        folder.remarks.append(f"{name} cannot be decoded, and is not played: {error}")
        return None
    return Markup(f"data:audio/wav;base64,{base64.b64encode(data).decode()}")


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
