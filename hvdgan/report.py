"""The command hvdgan report: writes one HTML page about a run, or about several."""

from hvdgan.cli import start

start.begin(__name__)

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from hvdgan.cli.app import command
from hvdgan.errors import UserError
from hvdgan.files import outputs
from hvdgan.pages import run_facts, run_page, several_runs

_HELP = """Write an HTML page about a run, for a person to open, read and send on. It needs no other file or network.

RUN_DIR is a run folder, also that of a run in progress, or a folder of runs, or of such folders. Several runs are
compared on one page.
Needs neither TensorFlow nor the recipe."""
_OURS = b'<meta name="generator" content="hvdgan'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to write where; the fields are the flags."""

    out: Path | None = None
    """file to write; default: report.html in the run folder, or in the working folder for several runs"""
    overwrite: bool = False
    """write over an existing file that is no report of hvdgan; a report is always replaced"""
    sort_by: str | None = None
    """metric by which several runs are sorted, such as eval/fid; default: their --best-metric, or one they share"""
    sort_mode: Literal["min", "max"] | None = None
    """min if the smallest value of that metric is the best, max if the largest; default: --best-mode of a run whose
    --best-metric it is, else max for PSNR, SSIM and others of which more is better, min for all others"""


@command(name="report", help_text=_HELP)
def main(
    run_dir: Path,
    /,
    *more: Annotated[Path, Parameter(help="further folders, whose runs are compared with those of the first")],
    request: Annotated[Request, Parameter(name="*")] = Request(),
) -> None:
    found: dict[Path, Path] = {}  # a link to a run is no other run
    for path in (path for each in (run_dir, *more) for path in run_facts.expand(each)):
        found.setdefault(path.resolve(), path)
    paths = list(found.values())
    out = request.out or (paths[0] if len(paths) == 1 else Path()) / "report.html"
    outputs.check_new(out, overwrite=request.overwrite or _is_ours(out))
    if len(paths) == 1:
        if request.sort_by or request.sort_mode:
            raise UserError("--sort-by, --sort-mode: there is one run; name several, or a folder of runs")
        text = run_page.make(run_facts.read(paths[0]), out.parent)
    else:
        text = several_runs.make(paths, request.sort_by, request.sort_mode)
    outputs.write_text(out, text, shared=True)  # a run renews its page itself
    print(f"{out}: {len(text.encode()):,} bytes, {len(paths)} run{'s' * (len(paths) > 1)}")


def _is_ours(path: Path) -> bool:
    """Check whether a file is a report that this command has written."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return _OURS in file.read(2000)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main())
