"""Writes "What of Keras works" into docs/recipes.md: horovodrun --gloo -np 2 python docs/make_keras_table.py"""

import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import keras

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "recipes.md"
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "support")]

from hvdgan.distributed import joining  # noqa: E402
from keras_cases import CASES, GROUPS, NOT_TRIED  # noqa: E402
from keras_trials import WORKS, outcomes  # noqa: E402

TITLE = "## What of Keras works"
_INTRODUCTION = """\
Made by `docs/make_keras_table.py` with Keras {version}. Each class of Keras stands in both networks of a small GAN,
which trains for 12 steps. It works if the weights equal those of a plain loop of Keras and those of two ranks, up to
the rounding, and if a resumed run has the same bits. The message of a refusal also says what to do."""
# What to do about a difference, where no message of hvdgan says it.
_ADVICE = {
    "BatchNormalization": "each rank normalises its own slice; give `synchronized=True`, or `--sync-batch-norm`",
    "BatchNormalization(renorm=True)": "each rank normalises its own slice, and cannot be synchronised",
    "Equalization": "the histogram is that of a rank's slice",
    "LSTM(stateful=True)": "leave it out: a batch does not continue the sequences of the one before",
    "Circle": "compares the samples of a rank with each other; the gradient is the mean over the ranks",
    "MeanSquaredError(reduction='sum')": "a loss must be a mean over the batch; leave `reduction` out",
    "MeanSquaredError(reduction='mean_with_sample_weight')": "it divides by the weights of a rank's samples; leave "
    "`reduction` out",
}


def section(found: Mapping[tuple[str, str], str]) -> str:
    """The section of the page, of the outcomes of all cases by group and name."""
    lines = [TITLE, "", _INTRODUCTION.format(version=keras.__version__), "", "| classes | work |", "|---|---|"]
    others: dict[str, list[str]] = {}
    for group, cases in CASES.items():
        texts = {name: in_words(name, found[group, name]) for name in cases} | NOT_TRIED.get(group, {})
        texts = {name: text for name, text in texts.items() if text != WORKS}
        for name, text in texts.items():
            others.setdefault(text, []).append(name)
        lines.append(
            f"| `{GROUPS[group].__name__.replace('._tf_keras', '')}` | {'all but those below' if texts else 'all'} |"
        )
    lines += ["", "| exceptions | |", "|---|---|"]
    lines += [f"| {_listed(names)} | {text} |" for text, names in others.items()]
    return "\n".join(lines) + "\n"


def in_words(name: str, outcome: str) -> str:
    """The outcome of a case in the words of the table, without places and numbers."""
    text = re.sub(r"recipe Trial(, | \([^)]*\): )|(stage \w+, update \w+|step \d+)( \([^)]*\))?: ", "", outcome)
    text = re.sub(r" \(layer \w+\)|(?<=refused: )network \w+(, layer \w+:)? ", "", text)
    text = re.sub(r"(?<=refused: )([^;]*).*", r"\1", text)
    text = re.sub(r"differs from (.*?) by [^;]*", r"differs from \1", text)
    return f"{text}; {_ADVICE[name]}" if name in _ADVICE else text


def on_page() -> dict[str, str]:
    """What the page says of each exception, by its name; all other cases work."""
    part = PAGE.read_text().partition(f"{TITLE}\n")[2].partition("\n## ")[0].partition("| exceptions |")[2]
    rows = [row[2:-2].split(" | ", 1) for row in part.splitlines() if row.startswith("| ")]
    return {name.strip("`"): text for names, text in rows for name in re.split(r", (?![^(]*\))", names)}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" if re.fullmatch(r"[\w.]+(\(.*\))?", name) else name for name in names)


def with_section(page: str, text: str) -> str:
    """The page with this section in place of the one that it has."""
    before, _, rest = page.partition(f"{TITLE}\n")
    after = rest.partition("\n## ")[2]
    return f"{before}{text}\n## {after}"


if __name__ == "__main__":
    ranks = joining.start()
    found = outcomes({(group, name): case for group in CASES for name, case in CASES[group].items()}, ranks)
    if ranks.is_root:
        PAGE.write_text(with_section(PAGE.read_text(), section(found)))
