"""Fills the templates of pages: everything is escaped, and only the page's own scripts may run."""

import base64
import hashlib
import time
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from hvdgan import __version__
from hvdgan.pages.curves import COLOURS, Charts, script

_FOLDER = Path(__file__).parent / "templates"


def fill(name: str, charts: Charts, **values: Any) -> str:
    """Fill a template; without charts the script that would draw them is left out."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    scripts = [script()] if charts.count else []
    scripts.append((_FOLDER / "page.js").read_text(encoding="utf-8"))
    digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in scripts]
    environment.globals |= {
        "charts": charts,
        "colours": COLOURS,
        "scripts": [Markup(each) for each in scripts],
        "hashes": Markup(" ".join(f"'sha256-{digest}'" for digest in digests)),
        "style": Markup((_FOLDER / "page.css").read_text(encoding="utf-8")),
        "version": __version__,
        "written": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    text = environment.get_template(name).render(**values)
    return text.encode(errors="backslashreplace").decode()  # names of files need not be UTF-8
