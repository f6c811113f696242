"""Medians, their spread, and efficiencies, from what the launches have measured."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from hvdgan.diagnostics.speed.launches import Variant

Figures = dict[str, Any]
PARTS = ("compute_seconds", "exposed_allreduce_seconds", "input_wait_seconds", "host_seconds")
_UPDATE_PARTS = ("compute_seconds", "exposed_allreduce_seconds")


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median, the smallest and the largest."""
    return {"median": statistics.median(values), "low": min(values), "high": max(values)}


def images_per_sec(result: Mapping[str, Any], stage: str) -> float:
    """What one launch did in a stage; copies together."""
    if "copies" in result:
        return sum(images_per_sec(copy, stage) for copy in result["copies"])
    return result["global_batch_size"] / result["stages"][stage]["step_seconds"]


def summarise(variant: Variant, results: Sequence[Mapping[str, Any]]) -> Figures:
    """All launches of a variant: medians with their spread over the launches.

    Args:
        variant: what was launched.
        results: of each launch.
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
    """How well ranks scale, launch by launch and then the median: what slows a machine for a while cancels out.

    Args:
        results: of each variant its launches, in the order of the repeats.
        variants: the ranks that belong together; one of them is one rank.
        scaling: weak (as many images for each rank) or strong (as many for all).

    Returns:
        For each number of ranks and stage: images_per_sec; of_one_rank, its part of as many times what one rank does;
        of_copies, its part of what as many independent copies do at the same time, where they were measured.
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
