"""Wave files of unequal length, for runs."""

from pathlib import Path

import numpy as np
import pytest

RATE, LENGTHS = 8000, range(1500, 5500, 500)


def write_waves(folder: Path) -> Path:
    """Write tones with noise, one of them shorter than a segment of 2048; skips a test without soundfile."""
    soundfile, random = pytest.importorskip("soundfile"), np.random.default_rng(0)
    folder.mkdir()
    for number, length in enumerate(LENGTHS):
        tone = np.sin(np.arange(length) * random.uniform(0.05, 0.5)) * random.uniform(0.2, 0.6)
        soundfile.write(folder / f"{number}.wav", tone + random.normal(0, 0.02, length), RATE)
    return folder
