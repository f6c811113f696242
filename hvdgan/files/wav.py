"""Waves as WAV files of 16 bits, with the standard library alone."""

import io
import wave
from pathlib import Path

import numpy as np

from hvdgan.files.replacing import whole_file

_CHANNELS, _RATE = 16, 1_000_000
"""most channels, and most samples per second, of a file that is read"""


def as_wav(samples: np.ndarray, rate: int) -> bytes:
    """The bytes of a WAV with samples (T, C) in [-1, 1], of this many per second; louder ones are clipped."""
    numbers, content = np.rint(np.clip(samples, -1.0, 1.0) * 32767).astype("<i2"), io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setparams((numbers.shape[1], 2, rate, len(numbers), "NONE", "not compressed"))
        file.writeframes(numbers.tobytes())
    return content.getvalue()


def save_wav(path: Path, samples: np.ndarray, rate: int) -> None:
    """Write samples as as_wav() does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        partial.write_bytes(as_wav(samples, rate))


def load_wav(path: Path, most: int) -> tuple[np.ndarray, int]:
    """Read samples (T, C) of a WAV, of at most this many bytes, and their number per second.

    A ValueError says what is wrong.
    """
    try:
        with wave.open(str(path), "rb") as file:
            channels, width, rate, *_ = file.getparams()
            if width != 2 or channels > _CHANNELS or rate > _RATE:
                raise ValueError(f"{channels} channels of {8 * width} bits, {rate} samples per second")
            return np.frombuffer(file.readframes(most // (2 * channels)), "<i2").reshape(-1, channels) / 32767, rate
    except (wave.Error, EOFError, OverflowError) as error:
        raise ValueError(str(error) or "it is cut off") from error
