"""The points of the ring of 8 and the grid of 25 Gaussians (Lin et al. 2018), for --data gaussians:Points."""

import numpy as np

POINTS = 100_000
_ANGLES = np.arange(8) * np.pi / 4
_LINE = np.arange(-4.0, 5.0, 2.0)
CENTRES = {
    "ring": np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1),
    "grid": np.stack(np.meshgrid(_LINE, _LINE), axis=-1).reshape(-1, 2),
}
DEVIATIONS = {"ring": 0.01, "grid": 0.05}


class Points:
    """Points of a mixture of Gaussians with equal weights, (N, 2)."""

    def __init__(self, protocol: str, seed: int = 0, num: int = POINTS) -> None:
        random, centres = np.random.default_rng(seed), CENTRES[protocol]
        chosen = centres[random.integers(0, len(centres), num)]
        self.points = (chosen + DEVIATIONS[protocol] * random.standard_normal((num, 2))).astype(np.float32)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.points[index]
