"""Scores of ensembles of whole fields: sums over the places of each field, and the figures of many fields."""

import math
from collections.abc import Sequence

import numpy as np

from hvdgan.evaluation.fields import Rings

Sums = dict[str, list[list[float]]]
"""sums over the places of a field by name: for each channel one number, one of each rank, or one of each ring"""


def ensemble_sums(truth: np.ndarray, members: np.ndarray) -> dict[str, np.ndarray]:
    """Sums over places of the scores of an ensemble (M, n, C), each (C, 1), and how often each rank occurs (C, M + 1).

    Places where the truth (n, C) is NaN are left out. The CRPS is fair, and the ranks are those of
    hvdgan.recipe.metrics, which has the references. A single member has no spread, and its CRPS is its absolute error.
    """
    known, count = ~np.isnan(truth), len(members)
    ordered, truth = np.sort(np.where(known, members, 0.0), axis=0), np.where(known, truth, 0.0)
    weights = (2.0 * np.arange(count) + 1 - count) / max(count * (count - 1), 1)
    crps = np.abs(ordered - truth).mean(axis=0) - np.tensordot(weights, ordered, 1)
    variance = ordered.var(axis=0, ddof=1) if count > 1 else np.zeros_like(truth)
    squared = (ordered.mean(axis=0) - truth) ** 2
    below, equal = (ordered < truth).sum(axis=0), (ordered == truth).sum(axis=0)
    ranks = [
        np.where(known & (below <= rank) & (rank <= below + equal), 1.0 / (equal + 1), 0.0).sum(axis=0)
        for rank in range(count + 1)
    ]
    scores = {"places": known, "crps": crps * known, "variance": variance * known, "squared": squared * known}
    found = {name: each.sum(axis=0, dtype=np.float64)[:, None] for name, each in scores.items()}
    return {**found, "ranks": np.stack(ranks, axis=1)}


def windowed_powers(rings: Rings, field: np.ndarray) -> np.ndarray:
    """Mean power of the modes of each ring (C, K) of a field (*space, C), whose missing numbers are set to its mean.

    A Hann window along each axis lets its ends meet, because the power of a jump there would hide that of small scales.
    """
    found = []
    for channel in range(field.shape[-1]):
        numbers = field[..., channel].astype(np.float32)  # a copy, which changes in place
        numbers -= np.float32(np.nanmean(numbers, dtype=np.float64))
        np.nan_to_num(numbers, copy=False)
        scale = max(numbers.max(), -numbers.min()) or np.float32(1)
        numbers /= scale  # in float32 the squares of very small numbers are 0
        for axis, size in enumerate(numbers.shape):
            if size > 1:
                window = np.hanning(size + 1)[:-1].astype(np.float32)
                numbers *= window.reshape(-1, *[1] * (numbers.ndim - 1 - axis))
        found.append(rings.summed_powers(numbers[None]) * float(scale) ** 2)
    return np.stack(found)


def ensemble_figures(sums: Sequence[Sums], channels: Sequence[str], shortest: int) -> dict[str, float]:
    """Figures of many fields, those of several channels with their names.

    `crps`, `rmse` of the ensemble's mean, and `spread`, the root of the mean variance of the members; rank_0 to rank_M,
    the fractions of places with 0 to M members below the truth; `spectrum`, the mean over rings of |log(power of the
    members / power of the truth)|; and power_A_B, the mean ratio of these powers at wavelengths of A to B pixels.
    """
    total = {
        name: [[math.fsum(numbers) for numbers in zip(*each, strict=True)] for each in zip(*all_, strict=True)]
        for name, all_ in ((name, [each[name] for each in sums]) for name in sums[0])
    }
    waves = shortest / np.arange(1, len(total["truth"][0]) + 1)
    found: dict[str, float] = {}
    for channel, name in enumerate(channels):
        places, crps, variance, squared = (total[key][channel][0] for key in ("places", "crps", "variance", "squared"))
        with np.errstate(all="ignore"):  # undefined where there are no places, or no power
            of_places = np.array([crps, variance, squared, *total["ranks"][channel]]) / np.float64(places)
            ratios = np.log(np.divide(total["members"][channel], total["truth"][channel]))
        figures = {"crps": of_places[0], "spread": of_places[1] ** 0.5, "rmse": of_places[2] ** 0.5}
        figures |= {f"rank_{rank}": share for rank, share in enumerate(of_places[3:])}
        if len(waves):
            figures["spectrum"] = np.abs(ratios).mean()
        for length in (2**power for power in range(1, shortest.bit_length())):
            if (band := (length <= waves) & (waves < 2 * length)).any():
                figures[f"power_{length}_{2 * length}"] = np.exp(ratios[band].mean())
        found |= {f"{key}_{name}" if len(channels) > 1 else key: float(each) for key, each in figures.items()}
    return found
