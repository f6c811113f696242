"""Pictures of a page as inline SVG by matplotlib, in the colours and the font of the page's style."""

import html
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

COLOURS = 8
"""number of colours of lines in the page's style; further lines are dashed"""
# Colours that no other part of a picture has; in the SVG they become variables of the page's style.
INK, RULE, BAND, MARK = "#0000b0", "#0000b1", "#0000b2", "#0000b3"
_VARIABLES = {INK: "muted", RULE: "rule", BAND: "band", MARK: "mark"}
_INCHES = (5.2, 2.5)
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hvdgan",
    "text.parse_math": False,
    "font.size": 9,
    "axes.formatter.useoffset": False,
    "axes.unicode_minus": False,
    "path.simplify_threshold": 0.2,
}


def colour(index: int) -> str:
    """Return the colour of a line, for matplotlib."""
    return f"#0000a{index % COLOURS}"


def number(value: float) -> str:
    """Return a number with four digits that count."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"


def picture(paint: Callable[[Any], None], words: str, prefix: str, inches: tuple[float, float] = _INCHES) -> str:
    """Draw a picture with one pair of axes."""
    import matplotlib  # takes half a second
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Of letters that matplotlib's font lacks, which the browser's have, and of axes over all magnitudes.
        warnings.simplefilter("ignore")
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(RULE)
        paint(axes)
        axes.tick_params(which="both", length=0, colors=INK)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return _for_page(file.getvalue(), words, prefix, inches)


def _for_page(text: str, words: str, prefix: str, inches: tuple[float, float]) -> str:
    """Make matplotlib's SVG part of a page: its own ids, the page's colours and font, and a text alternative."""
    text = text[text.index("<svg") :]
    text = re.sub(r"(?s)<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", text)
    kept = set(re.findall(r'(?:url\(|href=")#([^")]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda one: f' id="{prefix}-{one[1]}"' if one[1] in kept else "", text)
    text = re.sub(r'(url\(|href=")#', rf"\1#{prefix}-", text)
    text = re.sub(r": #0000a(\d)", r": var(--c\1)", text)
    for code, name in _VARIABLES.items():
        text = text.replace(f": {code}", f": var(--{name})")
    text = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+|\n", r"\1", path[0]), text)
    width, height = (round(each * 72) for each in inches)
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg role="img" aria-label="{html.escape(words)}" {size}>' + text[text.index(">") + 1 :].strip()
