"""The command hvdgan prepare: packs samples of any kind into HDF5 files, alone or under mpirun."""

from hvdgan.cli import start

start.begin(__name__)

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, unused here: one per core in every process

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from tqdm import tqdm

from hvdgan.cli.app import main_of, refuse_more_processes, run_app
from hvdgan.data.packed_files import INDEX, is_packed, read_whole_index
from hvdgan.data.packing import Plan, damages, executor_of, pack
from hvdgan.data.samples import Samples
from hvdgan.errors import RunError, UserError
from hvdgan.launching import hosts
from hvdgan.settings.config import Config
from hvdgan.settings.data import ArrayConfig, StoredConfig, TFRecordConfig
from hvdgan.settings.types import Count, CountOrNever, Fit, Fraction, ImageSize, Words

_HELP = """Pack samples into HDF5 files, which hvdgan train reads with --data, faster than most other data.

The flags mean the same as for hvdgan train. Pictures get their size here. The numbers of arrays stay as they are; a run
applies the maps, or its own. If the command is killed, the same command resumes it. The files have the same bytes for
any number of processes. Under mpirun each rank but the first is a process; all machines must see SRC and DST."""
_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The settings of the command; the fields are the flags."""

    image_size: ImageSize = None
    """height and width of pictures (pixels), one number or HEIGHT,WIDTH; needed for files of pictures"""
    fit: Fit | None = None
    """what to do with pictures of another aspect ratio: crop (at the centre), pad (black borders) or stretch"""
    shards: Count = 64
    """number of files, at least a few per process"""
    compression: Literal["gzip", "none"] = "none"
    """gzip makes files smaller and reading slower; no number changes"""
    channels: Literal[1, 3] | None = None
    """1 (grey) or 3 (RGB); default: those of an array, 3 for everything else"""
    pairs: bool = False
    """pack an input with each sample, for recipes of pairs"""
    data_options: Words = ()
    """arguments of your own source in SRC, if it is a class or a function: KEY=VALUE,KEY=VALUE"""
    arrays: Annotated[StoredConfig, Parameter(name="*")] = StoredConfig()  # noqa: RUF009
    tfrecord: Annotated[TFRecordConfig, Parameter(name="*")] = TFRecordConfig()  # noqa: RUF009
    max_bad_fraction: Fraction = 0.01
    """largest fraction of samples that may be unreadable or hold NaN; above it the command stops"""
    workers: CountOrNever = 0
    """number of processes; 0: one per core that this process may use; under a launcher the ranks are the processes"""
    verify: Path | None = None
    """check all samples in this folder of packed files, and pack nothing"""


@main_of(interrupted="interrupted; the same command resumes it")
def main(words: list[str]) -> int | None:
    """Pack samples, or verify packed ones; the exit code is 1 for failure or damage, 130 if interrupted."""

    def command(
        src: Annotated[str | None, Parameter(help="data, as in --data of hvdgan train")] = None,
        dst: Annotated[Path | None, Parameter(help="new folder for the packed files")] = None,
        /,
        *,
        request: Annotated[Request, Parameter(name="*")] = Request(),
    ) -> None:
        if request.verify is None:
            _prepare(src, dst, request)
        elif src is not None:
            raise UserError(f"--verify {request.verify}: takes no SRC and DST; pack first, then verify")
        else:
            _verify(request.verify)

    run_app(command, words, name="prepare", help_text=_HELP, usage="hvdgan prepare [OPTIONS] SRC DST")
    return 0


def _prepare(src: str | None, dst: Path | None, request: Request) -> None:
    with executor_of(request.workers or len(hosts.cores())) as (gives_work, executor):
        if not gives_work:
            return
        plan = _plan(src, dst, request)
        source = plan.opened()
        for line in source.remarks:
            print(f"hvdgan: {line}", file=sys.stderr)
        index = dict[str, Any]()
        # The progress is shown only on a terminal.
        with tqdm(total=len(source), unit=" samples", disable=None) as bar:
            is_new = False
            for count, found in pack(plan, source, executor):
                bar.update(count)
                index = found or index
                is_new |= found is None
    for name, reason in index["left_out"][:_NAMED]:
        print(f"hvdgan: left out {name}: {reason}", file=sys.stderr)
    if (more := len(index["left_out"]) - _NAMED) > 0:
        print(f"hvdgan: left out {more} more, see {plan.folder / INDEX}", file=sys.stderr)
    print(f"{plan.folder}: {_in_words(index)}{_of(source)}{'; it was finished before' if not is_new else ''}")


def _plan(src: str | None, dst: Path | None, request: Request) -> Plan:
    if src is None or dst is None:
        raise UserError("expected SRC and DST, or --verify DST; see --help")
    if request.shards > 99_999:
        raise UserError(f"--shards {request.shards}: expected at most 99999")
    arrays = request.arrays
    if arrays.inputs is not None and not request.pairs:
        raise UserError(f"--inputs {arrays.inputs}: packs an input with each sample; add --pairs, or leave it out")
    same = ("image_size", "fit", "channels", "data_options", "max_bad_fraction", "tfrecord")
    settings = {name: getattr(request, name) for name in same}
    config = Config(data=src, arrays=ArrayConfig(**vars(arrays)), **settings)
    compression = None if request.compression == "none" else request.compression
    return Plan(config=config, folder=dst, shards=request.shards, pairs=request.pairs, compression=compression)


def _in_words(index: dict[str, Any]) -> str:
    """What a folder holds."""
    files = index["files"].values()
    count, size = (sum(facts[name] for facts in files) for name in ("count", "bytes"))
    kind = f"{'pairs' if index['settings']['pairs'] else 'pictures' if index['pictures'] else 'samples'}"
    return f"{count:,} {kind} in {len(files)} files ({size / 1e6:,.1f} MB), {len(index['left_out'])} left out"


def _of(source: Samples) -> str:
    """Shape, classes and conditions of the samples."""
    text = f"; shape {source.layout.shape} of {source.stored_dtype}"
    if source.layout.input_shape is not None:
        text += f", inputs {source.layout.input_shape}"
    for name, store in source.arrays.items():
        text += f", {name} {store.shape[1:]} of {store.dtype}"
    if source.labels is not None:
        text += f", {len(set(source.labels.tolist()))} classes"
    if source.values.conditions is not None:
        text += f", conditions {', '.join(source.values.conditions.channels)}"
    return text


def _verify(folder: Path) -> None:
    refuse_more_processes()
    if not is_packed(os.fspath(folder)):
        problem = "not a folder made by hvdgan.prepare" if folder.exists() else "no such folder"
        raise UserError(f"--verify {folder}: {problem}")
    index = read_whole_index(folder, "--verify")
    found = list(damages(folder))
    for line in found:
        print(f"{folder}/{line}")
    if found:
        raise RunError(f"{folder} is damaged in {len(found)} places; restore the files, or prepare the data again")
    print(f"{folder}: {_in_words(index)}; verified")


if __name__ == "__main__":
    sys.exit(main())
