"""Missing numbers that networks see as a declared one, such as sea temperatures on land."""

import base64
import contextlib
import dataclasses
import math
import zlib
from typing import Any

import numpy as np

from hvdgan.errors import UserError


@dataclasses.dataclass(frozen=True, eq=False)
class Missing:
    """What networks see in place of missing numbers."""

    fill: float
    """number that networks see, after the map"""
    mask: np.ndarray | None = None
    """True where no sample has a number, (*space, C); None: there are no such places"""

    @property
    def field(self) -> np.ndarray | None:
        """1 where samples have all their numbers and 0 elsewhere, (*space, 1) float32; None without a mask."""
        return None if self.mask is None else (~np.any(self.mask, axis=-1, keepdims=True)).astype(np.float32)

    def filled(self, stored: np.ndarray, seen: np.ndarray) -> np.ndarray:
        """The mapped numbers of samples (B, ..., C), with the declared one where the stored number is NaN."""
        return np.where(np.isnan(stored), np.float32(self.fill), seen)

    def restored(self, samples: np.ndarray) -> np.ndarray:
        """Samples in the units of the data (B, ..., C), with NaN where all samples of the data have no number."""
        return samples if self.mask is None else np.where(self.mask, np.float32(np.nan), samples)

    def to_json(self) -> dict[str, Any]:
        if self.mask is None:
            return {"fill": self.fill}
        packed = base64.b85encode(zlib.compress(np.packbits(self.mask).tobytes())).decode()
        return {"fill": self.fill, "shape": list(self.mask.shape), "mask": packed}


def of_json(values: dict[str, Any]) -> Missing:
    """Make it again from to_json()."""
    if "mask" not in values:
        return Missing(values["fill"])
    count = math.prod(values["shape"])
    packed = zlib.decompressobj().decompress(base64.b85decode(values["mask"]), -(-count // 8))
    bits = np.unpackbits(np.frombuffer(packed, np.uint8), count=count)
    return Missing(values["fill"], bits.astype(bool).reshape(values["shape"]))


def parse(text: str) -> float:
    """Read the value of --missing: the finite number after fill:."""
    word, _, number = text.partition(":")
    with contextlib.suppress(ValueError):
        if word == "fill" and math.isfinite(fill := float(number)):
            return fill
    raise UserError(f"--missing {text}: expected fill:NUMBER, such as fill:0")
