"""Pictures of a run as data: URIs, re-encoded, so that neither their size nor their contents can surprise."""

import base64
import dataclasses
import io
import itertools

from markupsafe import Markup
from PIL import Image

from hvdgan.runs.folder import Folder

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
