"""The page of hvdgan.doctor: the verdict, each check, the ranks and the all-reduce."""

from collections.abc import Mapping, Sequence
from typing import Any

from hvdgan.pages.drawing import INK, RULE, colour, number, picture
from hvdgan.pages.template import fill

Facts = Mapping[str, Any]
_SENTENCES = {
    "ok": ("finished", "A run would work here"),
    "warn": ("stopped", "A run would work here, but less well than it could"),
    "fail": ("failed", "A run would fail here"),
}


def make(facts: Facts) -> str:
    """Make the page of a check.

    Args:
        facts: contents of --json.
    """
    state, sentence = _SENTENCES[facts["verdict"]]
    return fill(
        "doctor.html.j2",
        state=state,
        sentence=sentence,
        hints=[f"{row['check']}: {row['hint']}" for row in facts["rows"] if row["verdict"] != "ok" and row["hint"]],
        facts=[
            ("checked", facts["when"][:16].replace("T", " ")),
            ("host", facts["host"]),
            ("hvdgan", facts["hvdgan"]),
            ("ranks", str(facts["size"] or "")),
            ("controller", facts["controller"] or ""),
        ],
        checks=[[row["check"], row["verdict"], row["found"], row["hint"]] for row in facts["rows"]],
        ranks=[
            [str(rank), each["host"], _numbers(each["cores"]), str(each["gpus"]), _versions(each["versions"])]
            for rank, each in enumerate(facts["ranks"])
        ],
        rates=[
            [f"{each['bytes']:,}", *(number(1e3 * each[name]) for name in ("seconds", "low", "high")), _rate(each)]
            for each in facts["allreduce"]
        ],
        svg=_rates(facts["allreduce"]) if len(facts["allreduce"]) > 1 else None,
    )


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 8 else f"{len(numbers)} cores"


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _rate(each: Facts) -> str:
    return number(each["bytes_per_sec"] / 1e6)


def _rates(measured: Sequence[Facts]) -> str:
    def paint(axes: Any) -> None:
        sizes, rates = [each["bytes"] for each in measured], [each["bytes_per_sec"] / 1e6 for each in measured]
        axes.loglog(sizes, rates, "o-", color=colour(0), linewidth=1.3, markersize=4)
        axes.grid(axis="y", color=RULE, linewidth=0.6)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_formatter(lambda value, _: "")
        axes.set_xlabel("bytes", color=INK, fontsize=8, loc="right", labelpad=1)
        axes.set_ylabel("MB/s", color=INK, fontsize=8)

    first, last = measured[0], measured[-1]
    words = (
        f"Line chart of the rate of the all-reduce over its size: {_rate(first)} MB/s for {first['bytes']:,} bytes, "
        f"{_rate(last)} MB/s for {last['bytes']:,} bytes."
    )
    return picture(paint, words, "a")
