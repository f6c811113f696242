"""Summarises launches: medians, their spread, and scaling efficiencies."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hvdgan.diagnostics.speed.blocks import PARTS
from hvdgan.diagnostics.speed.launches import Variant

Figures = dict[str, Any]
_UPDATE_PARTS = ("compute_seconds", "exposed_allreduce_seconds")


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the smallest and the largest value."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def images_per_sec(result: Mapping[str, Any], stage: str) -> float:
    """Return the rate of one launch in a stage; of copies, the sum of their rates."""
    if "copies" in result:
        return sum(images_per_sec(copy, stage) for copy in result["copies"])
    return result["global_batch_size"] / result["stages"][stage]["step_seconds"]


def summarise(variant: Variant, results: Sequence[Mapping[str, Any]]) -> Figures:
    """Summarise all launches of a variant: medians with their spread over the launches.

    Args:
        variant: processes that were launched.
        results: result of each launch.
    """
    singles = [copy for result in results for copy in result.get("copies", [result])]
    gpu = [single["peak_gpu_bytes"] for single in singles if single["peak_gpu_bytes"] is not None]
    return {
        "kind": variant.kind,
        "ranks": variant.count,
        "local_batch_size": variant.local_batch_size,
        "launches": len(results),
        "controller": singles[0]["controller"],
        "startup_seconds": spread([single["startup_seconds"] for single in singles]),
        "peak_rss_bytes": spread([single["peak_rss_bytes"] for single in singles]),
        "peak_gpu_bytes": spread(gpu) if gpu else None,
        "processes": [process for single in results[0].get("copies", [results[0]]) for process in single["processes"]],
        "stages": {stage: _stage(stage, results, singles) for stage in singles[0]["stages"]},
    }


def _stage(stage: str, results: Sequence[Mapping[str, Any]], singles: Sequence[Mapping[str, Any]]) -> Figures:
    each = [single["stages"][stage] for single in singles]
    updates = {
        name: {
            **{part: spread([one["updates"][name][part] for one in each]) for part in _UPDATE_PARTS},
            **{kept: update[kept] for kept in ("every", "bytes_reduced", "bytes_owned")},
        }
        for name, update in each[0]["updates"].items()
    }
    return {
        "images_per_sec": spread([images_per_sec(result, stage) for result in results]),
        **{part: spread([one[part] for one in each]) for part in ("step_seconds", *PARTS)},
        **{kept: each[0][kept] for kept in ("bytes_reduced", "bytes_owned")},
        "updates": updates,
    }


def efficiencies(
    results: Mapping[Variant, Sequence[Mapping[str, Any]]], variants: Sequence[Variant], scaling: str
) -> list[Figures]:
    """Compute the efficiencies of each repeat, then their medians, so that a machine's slow spells cancel out.

    Args:
        results: launches of each variant, in the order of the repeats.
        variants: variants to compare; one of them has one rank.
        scaling: weak (each rank has the same number of images) or strong (all ranks together have).

    Returns:
        For each number n of ranks and each stage: images_per_sec; of_one_rank, its ratio to n times the rate of one
        rank; of_copies, its ratio to the rate of n independent copies at the same time, None if not measured.
    """
    one = next(results[variant] for variant in variants if variant.count == 1)
    table = []
    for variant in variants:
        copies = results.get(Variant("copies", variant.count, variant.local_batch_size))
        copies = one if variant.count == 1 else copies
        for stage in _stages(results[variant][0]):
            rates = [images_per_sec(result, stage) for result in results[variant]]
            singles = [variant.count * images_per_sec(result, stage) for result in one]
            ceilings = [images_per_sec(result, stage) for result in copies] if copies else None
            table.append(
                {
                    "scaling": scaling,
                    "ranks": variant.count,
                    "local_batch_size": variant.local_batch_size,
                    "stage": stage,
                    "images_per_sec": spread(rates),
                    "of_one_rank": _ratio(rates, singles),
                    "of_copies": _ratio(rates, ceilings) if ceilings else None,
                }
            )
    return table


def _stages(result: Mapping[str, Any]) -> list[str]:
    return list(result["stages"])


def _ratio(values: Sequence[float], others: Sequence[float]) -> dict[str, float]:
    return spread([value / other for value, other in zip(values, others, strict=True)])
