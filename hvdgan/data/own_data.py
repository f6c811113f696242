"""Data of the user's own: anything with len() and [i], named as --data my_module:source.

`source` is an object, or a class or a function that makes one from --data-options. Each item is an array, or a dict of
arrays: images, and perhaps inputs, labels and conditions. Grain, TensorFlow Datasets, Hugging Face and PyTorch have
such data sets.
"""

import dataclasses
import importlib
import json
import os
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hvdgan.cli.config import Config
from hvdgan.cli.errors import RunError, UserError, in_one_line
from hvdgan.cli.own_code import refuse_borrowed
from hvdgan.cli.shared_errors import Peers
from hvdgan.data.bad_files import BadImage
from hvdgan.data.numpy_files import NumpyArray
from hvdgan.data.sharing import pack, share_out_ranges, unpack
from hvdgan.data.store import Container, Store

_WANTED = "expected an object with len() and [i], or a class or function that makes one"
_BESIDE = ("labels", "conditions")


class OwnData(Container):
    """An object with len() and [i], whose items are arrays or dicts of arrays.

    Labels and conditions are needed before training: those that are attributes of the object, with an entry for each
    item, are taken whole; otherwise each rank reads a part of the items for them once.
    """

    def __init__(self, data: str, options: Sequence[str], peers: Peers) -> None:
        super().__init__(data)
        self._recent = threading.local()
        self._items = _made(data, options)
        try:
            self.count = len(self._items)
            first = self._items[0] if self.count else None
        except Exception as error:
            raise UserError(f"--data {data}: {_told(error)}; {_WANTED}") from error
        if first is None:
            raise UserError(f"--data {data}: it has no items")
        self.first = {name: self._array(value) for name, value in _parts_of(first).items()}
        if type(self._items).__repr__ is not object.__repr__:  # which holds an address in memory
            self.identity = repr(self._items).encode()
        self.class_names = getattr(self._items, "class_names", None)
        self.labels, self._conditions = (self._beside(name, peers) for name in _BESIDE)

    def settings(self, config: Config, *, paired: bool) -> Config:
        if config.arrays.conditions or self._conditions is None:
            return config
        return dataclasses.replace(config, arrays=dataclasses.replace(config.arrays, conditions=("conditions",)))

    def names(self) -> list[str]:
        names = [name for name in self.first if name not in _BESIDE]
        return names if self._conditions is None else [*names, "conditions"]

    def get(self, name: str) -> Store:
        if name == "conditions" and self._conditions is not None:
            return NumpyArray(f"{self.data}: conditions", self._conditions)
        return _OwnArray(self, name)

    def read(self, name: str, index: int) -> np.ndarray:
        """One array of an item."""
        named = f"{self.data}[{index}]"
        recent: dict[int, Any] = self._recent.__dict__.setdefault("items", {})
        try:
            if index not in recent:  # a pair is one item, of which the input is read before the image
                recent.clear()
                recent[index] = _parts_of(self._items[index])
            found = self._array(recent[index][name])
        except (OSError, MemoryError) as error:
            raise RunError(f"--data {named}: {_told(error)}") from error
        except Exception as error:  # the user's code may raise anything
            raise BadImage(named, _told(error)) from error
        wanted = self.first[name]
        if found.shape != wanted.shape or not np.can_cast(found.dtype, wanted.dtype):
            raise BadImage(named, f"{name} {found.shape} of {found.dtype}; expected {wanted.shape} of {wanted.dtype}")
        return found.astype(wanted.dtype, copy=False)

    def _array(self, value: Any) -> np.ndarray:
        found = np.asarray(value)
        if found.dtype == object:
            raise UserError(
                f"--data {self.data}: an item is {type(value).__name__}; expected an array, or a dict of arrays with "
                "the keys images, and perhaps inputs, labels and conditions"
            )
        return found

    def _beside(self, name: str, peers: Peers) -> np.ndarray | None:
        """Labels (N,) or conditions (N, k): an attribute of the object, or a part of the items, which are all read."""
        if (whole := getattr(self._items, name, None)) is not None:
            return np.asarray(whole)
        if name not in self.first:
            return None
        part = _OwnArray(self, name)
        look, length = lambda some: pack(part.read(np.array(some))), -(-self.count // (16 * peers.size))
        try:
            found = share_out_ranges(self.count, look, peers, f"--data {self.data}: {name}", length=length)
        except BadImage as error:
            raise UserError(f"--data {error}; the {name} of every item are needed") from error
        return np.concatenate([unpack(text, part.dtype.type) for text in found]).reshape(part.shape)


def _parts_of(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else {"images": item}


class _OwnArray(Store):
    """The arrays of one name of all items."""

    def __init__(self, data: OwnData, part: str) -> None:
        first = data.first[part]
        super().__init__(data.data, (data.count, *first.shape), first.dtype, prepared=False)
        self._data, self._part = data, part

    def read(self, indices: np.ndarray) -> np.ndarray:
        return np.stack([self._data.read(self._part, index) for index in indices.tolist()])


def _made(data: str, options: Sequence[str]) -> Any:
    """The object that --data names, or that its class or function makes from the options."""
    module, _, attribute = data.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        is_made = hasattr(found, "__getitem__") and not isinstance(found, type)
        if not is_made:
            refuse_borrowed(f"--data {data}", found)
        made = found if is_made else found(**dict(map(_option, options)))
    except UserError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise UserError(f"--data {data}: {_told(error)}; {_WANTED}") from error
    if is_made and options:
        raise UserError(f"--data-options {','.join(options)}: {data} is an object; options are for a class or function")
    if not (hasattr(made, "__len__") and hasattr(made, "__getitem__")):
        raise UserError(f"--data {data}: {type(made).__name__} has no len() and [i]; {_WANTED}")
    return made


def _option(text: str) -> tuple[str, Any]:
    """The name and the value of KEY=VALUE: a number, true, false, null or a list as in JSON, else a text."""
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UserError(f"--data-options {text}: expected KEY=VALUE, such as split=train")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def _told(error: BaseException) -> str:
    """The error of the user's code, with its place."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {in_one_line(error)}{where}"
