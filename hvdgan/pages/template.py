"""Fills the templates of pages: everything is escaped and made printable, and only the page's own script may run."""

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hvdgan import __version__
from hvdgan.pages.drawing import COLOURS
from hvdgan.pages.reading.thinning import POINTS
from hvdgan.pages.reading.untrusted import plain

_FOLDER = Path(__file__).parent / "templates"


def fill(name: str, *, templates: Path = _FOLDER, **values: Any) -> str:
    """Fill a template."""
    environment = Environment(
        loader=FileSystemLoader([templates, _FOLDER]),
        autoescape=True,
        finalize=_printable,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    script = (_FOLDER / "filmstrip.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals |= {
        "colours": COLOURS,
        "points": POINTS,
        "script": Markup(script),
        "script_hash": f"sha256-{digest}",
        "style": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    return environment.get_template(name).render(**values)


def _printable(value: Any) -> Any:
    return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value
