"""The command python -m hvdgan.prepare: converts images or arrays to packed shards, alone or under mpirun."""

from hvdgan.cli import start

start.begin(__name__)

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, unused here: one per core in every process

import dataclasses
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from tqdm import tqdm

from hvdgan.cli import hosts
from hvdgan.cli.app import exit_code, refuse_more_processes, run_app
from hvdgan.cli.config import Config
from hvdgan.cli.data_config import ArrayConfig, TFRecordConfig
from hvdgan.cli.errors import RunError, UserError
from hvdgan.cli.types import Count, CountOrNever, Fit, Fraction, ImageSize, Words
from hvdgan.data.base.source import sides
from hvdgan.data.formats.manifest import MANIFEST, is_prepared, read_manifest
from hvdgan.data.packing.destination import Plan, begun, completed, duplicates, parts
from hvdgan.data.packing.listing import Listing
from hvdgan.data.packing.shard_writer import Encoding, Packing, finish, pack
from hvdgan.data.packing.verify import damages
from hvdgan.data.packing.worker_pool import FailedElsewhere, WorkerPool

_HELP = """Convert images or arrays to packed shards, which hvdgan.train reads with --data.

SRC is a folder of images, a zip or tar archive, TFRecord files, also GZIP ones, or arrays, whose numbers are kept as
they are; all named as in hvdgan.train. DST is the new folder. If the command is killed, the same command resumes it.
The result is the same, byte for byte, for any number of processes. Under mpirun each rank is a process, on one machine
or on several that share SRC and DST."""
_NAMED = 5


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The settings of the command; the fields are the flags."""

    image_size: ImageSize = None
    """height and width of pictures (pixels), one number or HEIGHT,WIDTH; needed unless SRC is an array"""
    fit: Fit | None = None
    """how pictures of another aspect ratio get that size: crop (at the centre), pad (black borders) or stretch"""
    shards: Count = 64
    """number of shards; a few per rank of the largest run that you plan"""
    encoding: Encoding | None = None
    """of pictures: png (exact; default), raw (exact, fastest, largest), jpeg (quality 95, smallest); of arrays, all of
    them exact: raw, zlib, or auto (default: zlib if it makes a sample of the records at least a tenth smaller)"""
    channels: Literal[1, 3] | None = None
    """1 (grey) or 3 (RGB); default: those of an array, 3 for everything else"""
    pairs: bool = False
    """pack an input with each image: from subfolders A (inputs) and B (images), or the left and right half of a file;
    or with each sample: from the array --inputs"""
    axes: str | None = None
    """axes of a sample in the array: C, HW, HWC, CHW, DHW, DHWC or CDHW; default: C, HW, HWC or DHWC by their number"""
    inputs: str | None = None
    """array that holds the inputs of the samples, of any shape, for --pairs; default: inputs"""
    input_axes: str | None = None
    """axes of an input, as in --axes"""
    constants: str | None = None
    """array of fields that all samples share, such as the height of the ground: of a sample's height and width"""
    conditions: Words = ()
    """arrays beside the samples, or columns of --condition-table, with numbers that describe each sample"""
    condition_table: Path | None = None
    """CSV with a header, a row per sample, and either a column `file` with the samples' paths or the samples' order"""
    tfrecord_image: str | None = None
    """feature that holds the image or the array of a TFRecord; default: image"""
    tfrecord_label: str | None = None
    """feature that holds the class of a TFRecord, an integer; default: no classes"""
    tfrecord_input: str | None = None
    """feature that holds the input of a pair in a TFRecord; default: the left half of the image"""
    tfrecord_shape: str | None = None
    """shape of raw bytes or of an array in a TFRecord, as in hvdgan.train"""
    tfrecord_dtype: str | None = None
    """type of the numbers of an array in a TFRecord, as in hvdgan.train"""
    tfrecord_input_shape: str | None = None
    """shape of the array that --tfrecord-input names; default: that of the sample"""
    min_size: CountOrNever = 0
    """minimum length of the shorter side (pixels); smaller images are left out; 0: no limit. An array is refused if all
    its samples are smaller, since they have one shape"""
    dedup: bool = False
    """leave out images whose converted pixels, or samples whose numbers, equal those of an earlier one"""
    max_bad_fraction: Fraction = 0.01
    """largest fraction of images or samples that may be unreadable or hold NaN; above it the command stops"""
    workers: CountOrNever = 0
    """number of processes; 0: one per core that this process may use, or one per rank under a launcher"""
    verify: Path | None = None
    """verify this folder of shards, and convert nothing"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert images, or verify shards.

    Args:
        arguments: arguments of the command line; None: those of the process.

    Returns:
        The exit code: 0 success, 1 failure or damage, 2 a mistake of the user, 130 interrupted.
    """
    pools: list[WorkerPool] = []
    code = exit_code(
        lambda: _main(sys.argv[1:] if arguments is None else arguments, pools),
        interrupted="interrupted; the same command resumes it",
    )
    if pools and pools[0].failed:
        sys.stderr.flush()
        pools[0].abort(code)
    return code


def _main(arguments: Sequence[str], pools: list[WorkerPool]) -> int | None:
    def command(
        src: Path | None = None,
        dst: Path | None = None,
        /,
        *,
        request: Annotated[Request, Parameter(name="*")] = Request(),
    ) -> int:
        if request.verify is not None:
            if src is not None:
                raise UserError(f"--verify {request.verify}: takes no SRC and DST; convert first, then verify")
            _verify(request.verify, request.workers or len(hosts.cores()))
            return 0
        plan = _plan(src, dst, request)
        pools.append(WorkerPool())
        try:
            _prepare(plan, request, pools[0])
        except FailedElsewhere as error:
            return error.exit_code  # rank 0 reports the error
        return 0

    return run_app(command, arguments, name="prepare", help_text=_HELP)


def _plan(source: Path | None, destination: Path | None, request: Request) -> Plan:
    if source is None or destination is None:
        raise UserError("expected SRC and DST, or --verify DST; see --help")
    if request.shards > 99_999:
        raise UserError(f"--shards {request.shards}: expected at most 99999")
    if request.inputs is not None and not request.pairs:
        raise UserError(f"--inputs {request.inputs}: packs an input with each sample; add --pairs, or leave it out")
    given = vars(request)
    of_arrays = {field.name for field in dataclasses.fields(ArrayConfig)}
    of_records = {field.name: given[f"tfrecord_{field.name}"] for field in dataclasses.fields(TFRecordConfig)}
    config = Config(
        data=str(source),
        image_size=request.image_size,
        fit=request.fit,
        channels=request.channels,
        max_bad_fraction=request.max_bad_fraction,
        arrays=ArrayConfig(**{name: value for name, value in given.items() if name in of_arrays}),
        tfrecord=TFRecordConfig(**of_records),
    )
    return Plan(
        config=config,
        folder=destination,
        shards=request.shards,
        pairs=request.pairs,
        packing=Packing(encoding=request.encoding, min_size=request.min_size, dedup=request.dedup),
    )


def _prepare(plan: Plan, request: Request, pool: WorkerPool) -> None:
    workers = request.workers or (len(hosts.cores()) if pool.size == 1 else 1)
    found: list[tuple[Plan, Listing]] = []  # only rank 0 has one
    with ExitStack() as stack:

        def begin() -> int:
            work = stack.enter_context(begun(plan, request.max_bad_fraction))
            found.extend([] if work is None else [work])
            return len(found[0][1].names) if found else 0

        count = pool.from_root(begin)
        if count:
            _convert(plan.folder, pool, workers, found, count, dedup=request.dedup)
        pool.from_root(lambda: _finish(plan.folder, found, request.max_bad_fraction))


def _convert(
    folder: Path, pool: WorkerPool, workers: int, found: list[tuple[Plan, Listing]], count: int, *, dedup: bool
) -> None:
    jobs = [(folder, name, part, plan.packing) for plan, listing in found for name, part in parts(plan, listing)]
    # Only one rank shows a progress bar, and only on a terminal.
    with tqdm(total=count, unit=" images", disable=None if pool.rank == 0 else True) as bar:
        pool.run(pack, jobs, workers, lambda done: bar.update(done - bar.n))
    if dedup:
        again: list[Any] = []

        def compare() -> None:
            names = [name for _, name, *_ in jobs]
            again.extend(zip([folder] * len(names), names, duplicates(folder, names), strict=True))

        pool.from_root(compare)
        pool.run(finish, again, workers, lambda done: None)


def _finish(folder: Path, found: list[tuple[Plan, Listing]], max_bad_fraction: float) -> None:
    for plan, listing in found:
        manifest = completed(plan, listing, [name for name, _ in parts(plan, listing)], max_bad_fraction)
        for name, reason in manifest["failures"][:_NAMED]:
            print(f"hvdgan: skipped {name}: {reason}", file=sys.stderr)
        if (more := len(manifest["failures"]) - _NAMED) > 0:
            print(f"hvdgan: skipped {more} more, see {folder / MANIFEST}", file=sys.stderr)
        print(_in_words(folder, manifest))
    if not found:
        print(_in_words(folder, read_manifest(folder)) + "; it was finished before")


def _in_words(folder: Path, manifest: dict[str, Any]) -> str:
    size = sum(facts["bytes"] for facts in manifest["files"].values())
    classes = manifest["images_per_label"]
    return (
        f"{folder}: {manifest['count']:,} {_described(manifest)}, "
        f"{f'{len(classes)} classes' if classes else 'no labels'}, in "
        f"{len(manifest['shards'])} shards of {manifest['encoding']} ({size / 1e6:,.1f} MB); left out: "
        f"{len(manifest['failures'])} broken, {manifest['small']} small, {manifest['duplicates']} duplicates"
    )


def _described(manifest: dict[str, Any]) -> str:
    """What an image or sample of a folder is."""
    if "shape" not in manifest:
        height, width = sides(size) if isinstance(size := manifest["image_size"], int) else size
        kinds = "pairs" if manifest["pairs"] else "images"
        pictures = f"{kinds} of {width} x {height} pixels and {manifest['channels']} channels"
        return pictures + (f", conditions {', '.join(names)}" if (names := manifest.get("condition_names")) else "")
    own = [f"samples of shape {tuple(manifest['shape'])} and type {np.dtype(manifest['dtype'])}"]
    if manifest["pairs"]:
        own.append(f"inputs of shape {tuple(manifest['input_shape'])} and type {np.dtype(manifest['input_dtype'])}")
    if names := manifest["condition_names"]:
        own.append(f"conditions {', '.join(names)}")
    return ", ".join(own)


def _verify(folder: Path, threads: int) -> None:
    refuse_more_processes()
    if not is_prepared(folder):
        problem = "not a folder of shards made by hvdgan.prepare" if folder.exists() else "no such folder"
        raise UserError(f"--verify {folder}: {problem}")
    manifest = read_manifest(folder)
    found = list(damages(folder, manifest, threads))
    for line in found:
        print(f"{folder}/{line}")
    if found:
        raise RunError(f"{folder} is damaged in {len(found)} places; restore the files, or prepare the data again")
    print(_in_words(folder, manifest) + "; verified")


if __name__ == "__main__":
    sys.exit(main())
