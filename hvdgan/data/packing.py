"""Packs the samples of any source into HDF5 files, which hvdgan.data.packed_files describes.

A file is written under another name and renamed when it is whole, so the same command resumes. Its bytes depend on the
samples and the settings alone.
"""

import contextlib
import dataclasses
import functools
import json
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np

from hvdgan.data.arrays import by_name
from hvdgan.data.bad_files import BadImage, refuse_if_too_many
from hvdgan.data.hdf5_files import hdf5_file
from hvdgan.data.opening import open_source, refuse_array_flags
from hvdgan.data.packed_files import FORMAT, INDEX, MAPS, is_packed, read_index
from hvdgan.data.pixels import EncodedPictures
from hvdgan.data.samples import Samples, not_finite
from hvdgan.errors import RunError, UserError, in_one_line, unwritable
from hvdgan.files.lock import wait_for_lock
from hvdgan.files.replacing import whole_file
from hvdgan.launching.launched import launched
from hvdgan.settings.config import Config
from hvdgan.settings.own_code import sha256_of
from hvdgan.values import value_map

_LONGEST_NAME = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The request: SRC with its settings, as those of a run, DST, and how to pack."""

    config: Config
    folder: Path
    shards: int
    pairs: bool
    compression: str | None

    def opened(self) -> Samples:
        """SRC as a run opens it, with the numbers as they are stored; flags that do not fit it are refused."""
        config = self.config
        source = open_source(config, paired=self.pairs, unmapped=True, in_order=True)
        if source.is_pictures:
            refuse_array_flags(source, config)
        if config.image_size is None and isinstance(source.images, EncodedPictures):
            raise UserError("--image-size: expected the height and width of the packed pictures, as of a run")
        for name, each in zip(MAPS, ("images", "inputs", "constants", "conditions"), strict=True):
            given, flag = getattr(config.arrays, name), f"--{name.replace('_', '-')}"
            if given is not None and (part := source.values.parts()[each]) is not None:
                value_map.parse(given, flag, part.channels)
        for name, given in by_name(config.arrays.values_of, "--values-of", config.arrays.arrays).items():
            value_map.parse(given, f"--values-of {name}=", source.values.arrays[name].channels, widens=True)
        return source

    def settings(self) -> dict[str, Any]:
        """The settings on which the bytes of the files depend, as JSON types."""
        config = self.config
        pictures = {name: getattr(config, name) for name in ("image_size", "channels", "fit", "data_options")}
        records = {f"tfrecord_{name}": value for name, value in vars(config.tfrecord).items()}
        own = {"shards": self.shards, "pairs": self.pairs, "compression": self.compression}
        return json.loads(json.dumps({**own, **pictures, **vars(config.arrays), **records}, default=str))

    def file(self, number: int, count: int) -> Path:
        """The path of one of `count` files."""
        return self.folder / f"packed-{number:05d}-of-{count:05d}.h5"


def pack(plan: Plan, source: Samples, executor: Executor | None) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Write the files that are missing, by the executor or in this process, then the index.

    Yields for each file its number of samples and None; at last 0 and the index, alone if DST was finished.
    """
    folder = plan.folder
    with _locked(folder):
        index = {"format": FORMAT, "complete": False, "settings": plan.settings(), "source": source.fingerprint}
        if (before := _begun(folder, index))["complete"]:
            yield 0, before
            return
        count = min(plan.shards, len(source))
        files, bad = dict[str, Any](), [list(each) for each in source.bad_files]
        work = functools.partial(_pack_file, plan, source.fingerprint, count)
        here = (work(number, source) for number in range(count))
        results: Any = here if executor is None else executor.map(work, range(count))
        with contextlib.closing(results), _named_death():
            for number, (facts, left_out) in enumerate(results):
                files[plan.file(number, count).name] = facts
                bad += left_out
                refuse_if_too_many(
                    UserError,
                    name=source.name,
                    bad_files=[(name, reason) for name, reason in bad],
                    total=source.total,
                    max_bad_fraction=plan.config.max_bad_fraction,
                    flag="",
                )
                yield facts["count"] + len(left_out), None
        if not sum(facts["count"] for facts in files.values()):
            raise UserError(f"{source.name}: no sample is left; the first: {': '.join(bad[0])}")
        conditions = [] if source.values.conditions is None else source.values.conditions.channels
        index |= {"complete": True, "pictures": source.is_pictures, "class_names": source.class_names}
        index |= {"conditions": list(conditions), "left_out": bad, "files": files}
        _write_index(folder, index)
        yield 0, index


def damages(folder: Path) -> Iterator[str]:
    """Descriptions of the files that are not whole, and of the samples in them that cannot be read."""
    for name, facts in read_index(folder)["files"].items():
        path = folder / name
        try:
            if sha256_of(path) == facts["sha256"]:
                continue
            yield f"{name}: its checksum does not match"
            with hdf5_file(path) as file:
                parts = [file[part] for part in ("images", "inputs") if part in file]
                parts += file["arrays"].values() if "arrays" in file else []
                for number, sample in enumerate(file["names"][()]):
                    try:
                        for part in parts:
                            part[number]
                    except (OSError, RuntimeError) as error:
                        yield f"{name}[{number}] ({sample.decode(errors='replace')}): {in_one_line(error)}"
        except (OSError, RuntimeError, KeyError) as error:
            yield f"{name}: {in_one_line(error)}"


@contextlib.contextmanager
def executor_of(workers: int) -> Iterator[tuple[bool, Any]]:
    """Processes of this machine, or the ranks that an MPI launcher has started, or None for this process.

    The first value is True on the one rank that gives out the work.
    """
    launcher, size, _ = launched()
    if size > 1:
        try:
            from mpi4py import MPI  # here, since the import starts MPI
            from mpi4py.futures import MPICommExecutor
        except (ImportError, RuntimeError) as error:
            raise UserError(
                f"{launcher} has started {size} processes, which need mpi4py and an MPI: {in_one_line(error)}; "
                "pip install mpi4py, or start one process with --workers"
            ) from error
        if MPI.COMM_WORLD.Get_size() != size:
            raise UserError(
                f"{launcher} has started {size} processes, and MPI sees {MPI.COMM_WORLD.Get_size()}; start it with "
                "mpirun, with srun --mpi=pmix, or as one process with --workers"
            )
        with MPICommExecutor(MPI.COMM_WORLD, root=0) as ranks:
            yield ranks is not None, ranks
    elif workers == 1:
        yield True, None
    else:
        # Spawned, not forked, since a fork copies locks that other threads may hold.
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker) as pool:
            try:
                yield True, pool
            except BaseException:
                for process in multiprocessing.active_children():
                    process.terminate()  # instead of finishing files that nobody waits for
                raise


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and end with it: a killed parent does not close the queue on which a worker waits."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock DST, which must be new or made by this command."""
    try:
        if folder.exists() and not folder.is_dir():
            raise UserError(f"{folder}: is a file; expected the name of a new folder")
        names = {path.name for path in folder.iterdir()} if folder.exists() else set()
        if names - {".lock", f".{Path(INDEX).stem}.partial.json"} and not is_packed(os.fspath(folder)):
            raise UserError(f"{folder}: holds other files, and nothing is ever overwritten; name a new folder")
        with wait_for_lock(folder, named=str(folder), by="hvdgan.prepare") as locked:
            for remark in locked.remarks:
                print(f"hvdgan: {remark}", file=sys.stderr, flush=True)
            yield
            (folder / ".lock").unlink(missing_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from error


def _begun(folder: Path, index: dict[str, Any]) -> dict[str, Any]:
    """Begin DST, or continue it if it was begun by the same command from the same data.

    As long as no file of it holds a sample, another command may begin it anew: the first one may have been refused.
    """
    if is_packed(os.fspath(folder)):
        before, problem, files = read_index(folder), "", sorted(folder.glob("packed-*.h5"))
        if before["source"] != index["source"]:
            problem = "from other data, or files of SRC have changed; name a new folder"
        for name, now in index["settings"].items():
            if (was := before["settings"].get(name)) != now:
                flag = f"--{name.replace('_', '-')}"
                problem = f"with {flag} {was}, and now {now}; give the same value, or name a new folder"
        if not problem:
            return before
        if any(_facts_of(path)[0]["count"] for path in files):
            raise UserError(f"{folder}: begun {problem}")
        for path in files:
            path.unlink()
    _write_index(folder, index)
    return index


@contextlib.contextmanager
def _named_death() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise RunError(
            "a process of --workers has died, killed or out of memory; whole files are not lost: give the same "
            "command again, with fewer --workers if memory is short"
        ) from error


@functools.lru_cache(1)  # a process of the executor packs several files
def _source_of(plan: Plan) -> Samples:
    return plan.opened()


def _pack_file(
    plan: Plan, fingerprint: str, count: int, number: int, source: Samples | None = None
) -> tuple[dict[str, Any], list[list[str]]]:
    """Write one of `count` files, unless it is there, and return its facts and what was left out of it."""
    if source is None:
        source = _source_of(plan)
    if source.fingerprint != fingerprint:
        raise RunError(f"{source.name}: differs between processes, or has changed; restore it, then repeat the command")
    path, bounds = plan.file(number, count), np.linspace(0, len(source), count + 1).astype(np.int64)
    if not path.exists():
        try:
            with whole_file(path, lasting=True) as partial:
                _write(partial, source, range(bounds[number], bounds[number + 1]), plan.compression)
        except (OSError, RuntimeError) as error:
            raise unwritable(path, error) from error
    return _facts_of(path)


def _facts_of(path: Path) -> tuple[dict[str, Any], list[list[str]]]:
    """The number of samples and the SHA-256 of a file, and what was left out of it."""
    try:
        with hdf5_file(path) as file:
            count = len(file["digests"]) if "digests" in file else 0
            left_out = file["left_out"].asstr()[()].tolist() if "left_out" in file else []
        return {"count": count, "sha256": sha256_of(path), "bytes": path.stat().st_size}, left_out
    except (OSError, RuntimeError) as error:
        raise RunError(f"{path}: cannot be read: {in_one_line(error)}; remove it, then repeat the command") from error


def _write(path: Path, source: Samples, indices: Sequence[int], compression: str | None) -> None:
    """Write some samples to a new file; broken ones, and those with NaN or infinities, are left out by name.

    NaN stays where the request says what networks see in its place.
    """
    kept, bad = list[int](), list[tuple[str, str]]()
    checked: dict[str, Any] = {"fletcher32": True}
    with hdf5_file(path, "w") as file:
        for part, one in source.blank(1).items():
            compressed = {"compression": compression, "shuffle": True} if compression else {}
            size = (len(indices), *one.shape[1:])
            dataset = file.create_dataset(
                part, size, one.dtype, chunks=one.shape, maxshape=size, **checked, **compressed
            )
            _describe(dataset, source.values.parts()[part])
        for index in indices:
            try:
                parts = source.fetch(index)
                for part, sample in parts.items():
                    known = sample if source.missing is None else np.where(np.isnan(sample), 0, sample)
                    if known.dtype.kind == "f" and (reason := not_finite(known)):
                        raise BadImage(_name_of(source, index), f"{part}: {reason}" if part != "images" else reason)
            except BadImage as broken:
                bad.append(broken.bad_file)
                continue
            for part, sample in parts.items():
                file[part][len(kept)] = sample
            kept.append(index)
        for part in source.blank(1):
            file[part].resize(len(kept), 0)
        if bad:
            left_out = _texts([text for each in bad for text in each]).reshape(-1, 2)
            file.create_dataset("left_out", data=left_out, **checked)
        if not kept:
            return
        file.create_dataset("names", data=_texts([_name_of(source, index) for index in kept]), **checked)
        digests = np.array([np.frombuffer(source.digest(index), np.uint8) for index in kept])
        file.create_dataset("digests", data=digests, **checked)
        for part, numbers in (("labels", source.labels), ("conditions", source.conditions)):
            if numbers is not None:
                file.create_dataset(part, data=numbers[kept], **checked)
        if source.constants is not None:
            file.create_dataset("constants", data=source.constants, **checked)
        for part in ("conditions", "constants"):
            if part in file:
                _describe(file[part], source.values.parts()[part])


def _describe(dataset: Any, known: value_map.ValueMap | None) -> None:
    """Note names of the channels, unless they are mere numbers, and their units."""
    if known is not None and not all(name.isdecimal() for name in known.channels):
        dataset.attrs["channels"] = list(known.channels)
    if known is not None and any(known.units):
        dataset.attrs["units"] = known.units[0] if len(set(known.units)) == 1 else list(known.units)


def _name_of(source: Samples, index: int) -> str:
    """The name of a sample in SRC; its key where that is a readable text, and not pixels."""
    key = os.fsdecode(source.key(index))
    return key if len(key) < _LONGEST_NAME and key.isprintable() else source.named(index)


def _texts(texts: Sequence[str]) -> np.ndarray:
    return np.array([text.encode(errors="surrogateescape") for text in texts])


def _write_index(folder: Path, index: dict[str, Any]) -> None:
    with whole_file(folder / INDEX, lasting=True) as partial:
        partial.write_text(json.dumps(index, indent=1) + "\n")
