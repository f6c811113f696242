"""Images of every kind that Pillow writes or reads: their left half has one colour and their right half another."""

import struct
import zlib

import numpy as np
from PIL import Image

RED, BLUE, WHITE, PINK = (255, 0, 0), (0, 0, 255), (255, 255, 255), (255, 127, 127)


def halves(left, right, width=48, height=40):
    """An RGB or RGBA image whose left half has one colour and whose right half another."""
    pixels = np.empty((height, width, len(left)), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = left, right
    return Image.fromarray(pixels)


def grey_halves(left, right, dtype=np.uint8):
    pixels = np.full((40, 48), left, dtype)
    pixels[:, 24:] = right
    return Image.fromarray(pixels)


def grey_and_alpha():
    grey = grey_halves(50, 200)
    grey.putalpha(grey_halves(255, 0))
    return grey


def palette_and_transparency():
    image = Image.new("P", (48, 40), 1)
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 0, 255])
    image.paste(2, (24, 0, 48, 40))
    return image


def png(width, height, bit_depth, colour_type, rows=b""):
    """A PNG as Pillow does not write them."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bit_depth, colour_type, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def colour_png_of_16_bits():
    row = b"\0" + struct.pack(">3H", 65535, 0, 0) * 24 + struct.pack(">3H", 0, 0, 65535) * 24
    return png(48, 40, 16, 2, row * 40)


RED_BLUE = halves(RED, BLUE)
ANIMATED = {"save_all": True, "append_images": [halves((0, 255, 0), (0, 255, 0))]}
