"""Reads encoded pictures, and brings pictures to 8-bit pixels of one size."""

import abc
import contextlib
import hashlib
import io
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from hvdgan.data.bad_files import BadImage, reasons
from hvdgan.data.store import DataRequest, DerivedStore, Size, Store, sides
from hvdgan.errors import UserError
from hvdgan.files.png import as_image
from hvdgan.settings.types import Fit

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff")

# Only these decoders are tried, whatever the file's name: some others of Pillow start helper programs (EPS).
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
GREY = ("1", "L", "LA", "La", "I;16", "I;16B")  # modes of Pillow

_MAX_PIXELS = 2**27
"""Larger images are refused by their header. The limit admits photographs of 108 megapixels, bounds the memory of each
thread that decodes to 400 MB, and is below Pillow's own limit of 179 megapixels."""

# Texts, which are not used, and colour profiles do not make a PNG file broken, unless they would fill the memory.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 2**28
# Pillow would warn, for each file, of damaged metadata and of images above 89 megapixels, which are accepted here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class WrongAspect(ValueError):
    """A picture has another aspect ratio than the size that is wanted, and nothing says how to bring it there."""


class EncodedPictures(Store):
    """Pictures of many sizes in encoded files, decoded and brought to one size and number of channels.

    If they are `paired`, each comes with an input, in a file of its own or in the left half, as one record.
    """

    def __init__(self, count: int, request: DataRequest) -> None:
        config, channels = request.config, request.config.channels or 3
        shape = (count, *sides(request.size), channels * (1 + request.paired))
        super().__init__(config.data, shape, np.uint8, prepared=False)
        self._to, self._paired = (request.size, channels, config.fit), request.paired

    @abc.abstractmethod
    def files(self, index: int) -> list[tuple[str, bytes]]:
        """Name and content of the image's file; for a pair in two files, those of the input come first."""

    def read(self, indices: np.ndarray) -> np.ndarray:
        decoded = self._pair if self._paired else self._single
        return np.stack([decoded(self.files(index)) for index in indices.tolist()])

    def _single(self, files: list[tuple[str, bytes]]) -> np.ndarray:
        ((name, content),) = files
        return read_image(name, content, *self._to)

    def _pair(self, files: list[tuple[str, bytes]]) -> np.ndarray:
        images = [_whole(*each) for each in files]
        (name, _), (width, height) = files[0], images[0].size
        if len(images) == 1:
            if width != 2 * height:
                reason = "an input and its image side by side are twice as wide as high"
                raise BadImage(name, f"{width} x {height} pixels; {reason}")
            images = [images[0].crop((left, 0, left + height, height)) for left in (0, height)]
        elif images[0].size != images[1].size:
            its = "{} x {}".format(*images[1].size)
            raise BadImage(name, f"{width} x {height} pixels, and its partner {files[1][0]} has {its}")
        with reasons(name):
            return np.concatenate([to_pixels(image, *self._to) for image in images], axis=-1)


class ResizedStore(DerivedStore):
    """A uint8 store of pictures (N, H, W, C) with 1, 3 or 4 channels (the fourth is opacity), or (N, H, W) for grey.

    They keep their size and channels, of four three, unless others are given. `half` is 0 for the left half of each and
    1 for the right one. The pixels of a sample are its key, unless the store has names.
    """

    def __init__(
        self,
        name: str,
        stored: Store,
        *,
        image_size: Size | None,
        channels: int | None,
        fit: Fit | None = None,
        half: int | None = None,
        has_names: bool = False,
    ) -> None:
        self._fit, self._has_names = fit, has_names
        self._shape = stored.shape[1:] if len(stored.shape) == 4 else (*stored.shape[1:], 1)
        height, width = self._shape[:2]
        self._columns = slice(None)
        if half is not None:
            width //= 2
            self._columns = slice(half * width, (half + 1) * width)
        self.size = sides(image_size or (height, width))
        """height and width of a picture"""
        try:
            refuse_aspect(width, height, self.size, fit)
        except WrongAspect as error:
            raise UserError(f"--data {name}: each picture has {error}") from error
        super().__init__(stored, (stored.shape[0], *self.size, channels or (1 if self._shape[-1] == 1 else 3)))

    def read(self, indices: np.ndarray) -> np.ndarray:
        images = self._pictures(indices)
        if images.shape[1:] == self.shape[1:]:
            return images
        return np.stack([to_pixels(as_image(image), self.size, self.shape[-1], self._fit) for image in images])

    def key(self, index: int) -> bytes:
        if self._has_names:
            return super().key(index)
        return np.ascontiguousarray(self._pictures(np.array([index]))[0]).tobytes()

    def digest(self, index: int) -> bytes:
        return super().digest(index) if self._has_names else hashlib.sha256(self.key(index)).digest()

    def _pictures(self, indices: np.ndarray) -> np.ndarray:
        """uint8 (B, H, W, C) of the array's own size."""
        return self._stored.read(indices).reshape(-1, *self._shape)[:, :, self._columns]


def read_image(name: str, content: bytes, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Decode one picture, of an animation the first frame."""
    with _image_of(name, content) as image:
        width, height = image.size
        # JPEG decodes at 1/2, 1/4 or 1/8 in a fraction of the time; twice the size preserves the quality of resampling.
        longest = 2 * max(sides(image_size))
        image.draft(None, (longest, longest))
        image.load()
        loaded = image.size
        turned = upright(image)
        if fit is None:
            refuse_aspect(*((width, height) if turned.size == loaded else (height, width)), image_size, fit)
            fit = "stretch"  # a JPEG that is decoded at a fraction of its size may be up to a pixel too long
        return to_pixels(turned, image_size, channels, fit)


def read_size(name: str, content: bytes) -> tuple[int, int]:
    """Width and height of the upright image in pixels, from the file's header."""
    with _image_of(name, content) as image:
        return (image.height, image.width) if _lies_on_its_side(image) else image.size


def read_whole(path: Path, name: str) -> tuple[np.ndarray, bytes | None]:
    """Decode a file of 8 bits per channel without loss: turned upright, but neither cropped nor resized.

    Returns:
        uint8 (H, W, 1) for grey and (H, W, 3) for RGB, and the colour profile, if the file has one.
    """
    with reasons(name):
        image = _whole(name, path.read_bytes())
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA"):
        raise BadImage(name, f"its colour mode is {image.mode}; expected grey or RGB of 8 bits")
    if image.has_transparency_data and np.asarray(image.convert("RGBA"))[..., 3].min() < 255:
        raise BadImage(name, "it has transparent pixels; save it without")
    grey = image.mode in ("1", "L", "LA")
    pixels = np.asarray(image.convert("L" if grey else "RGB"))
    return pixels[..., None] if grey else pixels, image.info.get("icc_profile")


def to_pixels(image: Image.Image, image_size: Size, channels: int, fit: Fit | None = None) -> np.ndarray:
    """Bring a picture to one size: crop, pad or stretch it, convert and resize it.

    Transparent pixels are laid over white. 16-bit grey is scaled to 8 bits, not clipped. RGB becomes grey by the luma
    of ITU-R BT.601. Larger images are reduced with an antialiasing Lanczos filter, smaller ones enlarged bicubically.
    Colour profiles are not applied.
    """
    height, width = sides(image_size)
    refuse_aspect(image.width, image.height, image_size, fit)
    scale = min(image.width / width, image.height / height)
    if fit != "stretch" and fit != "pad":
        across, down = round(width * scale), round(height * scale)
        left, top = (image.width - across) // 2, (image.height - down) // 2
        image = image.crop((left, top, left + across, top + down))
    part = _opaque(image).convert("L" if channels == 1 else "RGB")
    if fit == "pad":
        scale = max(image.width / width, image.height / height)
        inner = _resized(part, max(1, round(image.width / scale)), max(1, round(image.height / scale)))
        part = Image.new(part.mode, (width, height))
        part.paste(inner, ((width - inner.width) // 2, (height - inner.height) // 2))
    return np.asarray(_resized(part, width, height)).reshape(height, width, channels)


def refuse_aspect(width: int, height: int, image_size: Size, fit: Fit | None) -> None:
    """Raise WrongAspect if a picture's aspect ratio is not the wanted one, and `fit` does not say what to do."""
    wanted = sides(image_size)
    if fit is None and width * wanted[0] != height * wanted[1]:
        raise WrongAspect(
            f"{width} x {height} pixels, and {wanted[1]} x {wanted[0]} are wanted; say what to do with --fit crop, "
            "--fit pad or --fit stretch, or give --image-size HEIGHT,WIDTH, and --crop for a part of each"
        )


@contextlib.contextmanager
def _image_of(name: str, content: bytes) -> Iterator[Image.Image]:
    """Open an image whose header is sound; every error in the block becomes a BadImage of this name."""
    with reasons(name):
        if not content:
            raise BadImage(name, "empty file")
        try:
            image = Image.open(io.BytesIO(content), formats=_FORMATS)
        except UnidentifiedImageError as error:
            of_tiff = "a TIFF whose bands or numbers Pillow does not read; save it as an array, such as .npy"
            is_tiff = content.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"))
            raise BadImage(name, of_tiff if is_tiff else "not a PNG, JPEG, WebP, BMP, GIF or TIFF image") from error
        if image.width * image.height > _MAX_PIXELS:
            raise BadImage(name, f"{image.width} x {image.height} pixels, more than the {_MAX_PIXELS:,} accepted")
        if image.format == "TIFF" and (pages := getattr(image, "n_frames", 1)) > 1:
            raise BadImage(name, f"a stack of {pages} pages; save each page as a file, or all as one .npy file")
        bands = getattr(image, "tag_v2", {}).get(277, 1)
        if bands > len(image.getbands()) + 1:  # one more may be opacity
            raise BadImage(name, f"a TIFF of {bands} bands; save it as an array, such as .npy")
        yield image


def _whole(name: str, content: bytes) -> Image.Image:
    """The upright image in its full size: a JPEG that is decoded at a fraction of it may have an odd width."""
    with _image_of(name, content) as image:
        image.load()
        return upright(image)


def upright(image: Image.Image) -> Image.Image:
    """The loaded image, turned according to its EXIF orientation."""
    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # the pixels may be sound although the metadata are damaged
        return image
    return image


def _lies_on_its_side(image: Image.Image) -> bool:
    """Check if the EXIF orientation, as far as the header tells it, exchanges width and height."""
    if image.format == "TIFF":
        return False  # Pillow has exchanged them
    if image.format == "PNG" and "exif" not in image.info:
        return False  # Pillow would decode the whole image to search behind the pixels
    try:
        return image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except Exception:  # damaged metadata do not turn an image
        return False


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    if image.size == (width, height):
        return image
    smaller = image.width > width or image.height > height
    resample = Image.Resampling.LANCZOS if smaller else Image.Resampling.BICUBIC
    return image.resize((width, height), resample, reducing_gap=3.0)


def _opaque(image: Image.Image) -> Image.Image:
    """The image with 8 bits per channel and without transparency, in one of Pillow's modes."""
    if image.mode.startswith("I;16"):  # 16-bit grey, which convert("L") would clip
        return Image.fromarray(((np.asarray(image).astype(np.uint32) + 128) // 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError("numbers with a sign, or of 32 bits; expected 8 or 16 bits, or an .npy file")
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA"))
    return image
