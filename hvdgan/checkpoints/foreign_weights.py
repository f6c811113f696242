"""Weights of other programs: tensors by their names, never from a pickle, and how they match a network's variables."""

import contextlib
import io
import json
import math
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from safetensors.numpy import load_file

from hvdgan.errors import UserError, in_one_line, list_some

Tensors = dict[str, np.ndarray]
Shape = tuple[int, ...]
Shapes = Mapping[str, Shape]
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_CONVERT = (
    'a pickle can run any code when it is read; convert it: python -c "import torch, safetensors.torch as s; '
    "f = lambda d, p='': {{k: v for n, x in d.items() for k, v in (f(x, f'{{p}}{{n}}.') if isinstance(x, dict) else "
    "{{f'{{p}}{{n}}': x}}).items() if torch.is_tensor(v)}}; s.save_file({{k: v.contiguous().clone() for k, v in "
    "f(torch.load('{0}', 'cpu', weights_only=True)).items()}}, '{1}')\""
)
_NO_WEIGHTS = {"optimizer", "optimizer_weights", "metrics", "compile_metrics", "num_batches_tracked"}
_NO_WEIGHTS |= {"seed_generator", "seed_generator_state"}
"""words in the names of what Keras and PyTorch save besides weights"""
_OF_PYTORCH = {"bias": "bias", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
"""last words of PyTorch's names by those of Keras, where it is not weight"""
_STARS = {"*": r"([^./]+)", "**": "(.+)"}


class Rule(NamedTuple):
    """What becomes of the tensors whose names match a pattern; or, with `keep`, variables that need no tensor.

    to: name of the variable; "" leaves the tensors out. shape: that before the turn; after it, the tensor gets the
    shape of the variable. gain: name of the tensor with the norms of the filters, whose directions the tensor has.
    """

    pattern: str
    to: str = ""
    turn: str = ""
    shape: Sequence[int] = ()
    gain: str = ""
    keep: bool = False

    def of(self, name: str) -> "Rule | None":
        """The rule for this name, with what the stars stand for; None if it does not match."""
        pieces = (_STARS.get(each) or re.escape(each) for each in re.split(r"(\*+)", self.pattern))
        match = re.fullmatch("".join(pieces), name)
        return match and self._replace(to=_filled(self.to, match), gain=_filled(self.gain, match))


def _filled(text: str, match: re.Match[str]) -> str:
    parts = iter(match.groups())
    return re.sub(r"\*+", lambda stars: next(parts, stars[0]), text)


def read_rules(path: Path) -> dict[str, list[Rule]]:
    """Read the rules of a map, by network."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        return {
            network: [_rule(key, {"to": value} if isinstance(value, str) else value) for key, value in table.items()]
            for network, table in tables.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"--init-map {path}: {in_one_line(error)}; --init-map print writes an example") from error


def _rule(pattern: str, facts: dict[str, Any]) -> Rule:
    if unknown := sorted(facts.keys() - {*Rule._fields[1:]}):
        expected = f"expected {', '.join(Rule._fields[1:])}, and quotes around a name that has dots"
        raise ValueError(f"{pattern} has {', '.join(unknown)}; {expected}")
    rule = Rule(pattern, **facts)
    if not all(isinstance(text, str) for text in (rule.to, rule.turn, rule.gain)):
        raise ValueError(f"{pattern}: to, turn and gain are texts")
    return rule


def read(path: Path, where: str) -> Tensors:
    """Read the tensors of a file, sorted by name with 2 before 10; `where` begins the message of a UserError."""
    kind = path.suffix.lower()
    try:
        found = _READERS[kind](path)
    except Exception as error:  # a damaged file fails in many ways
        why = in_one_line(error) if kind in _READERS else f"expected a file {', '.join(_READERS)}"
        why = _CONVERT.format(path, path.with_suffix(".safetensors")) if kind in _PICKLES else why
        raise UserError(f"{where}: cannot be read: {why}") from error
    names = [
        each for each in found if found[each].dtype.kind not in "OSU" and not _NO_WEIGHTS & {*re.split("[./]", each)}
    ]
    keys = {name: [int(x) if x.isdigit() else x for x in re.split(r"(\d+)", name)] for name in names}
    return {name: found[name] for name in sorted(names, key=keys.__getitem__)}


def _of_hdf5(source: Any) -> Tensors:
    found = dict[str, Any]()
    with h5py.File(source, "r") as file:
        file.visititems(found.__setitem__)
        named = {name: np.asarray(each) for name, each in found.items() if isinstance(each, h5py.Dataset)}
    # Keras writes bfloat16 as raw bytes.
    return {name: value.view("bfloat16") if value.dtype == "V2" else value for name, value in named.items()}


_READERS: Mapping[str, Callable[[Path], Tensors]] = {
    ".keras": lambda path: _of_hdf5(io.BytesIO(zipfile.ZipFile(path).read("model.weights.h5"))),
    ".h5": _of_hdf5,
    ".npz": lambda path: dict(np.load(path, allow_pickle=False)),
    ".safetensors": load_file,
}


def matched(tensors: Tensors, shapes: Shapes, rules: Sequence[Rule], where: str) -> Tensors:
    """The values of variables of these shapes, by name; a UserError names what has no partner on either side."""
    found, spare, used = Tensors(), dict[str, Shape](), {""}
    for name, value in tensors.items():
        chosen = next((match for rule in rules if not rule.keep and (match := rule.of(name))), None)
        rule = chosen or Rule(name, name)
        if chosen is None and shapes.get(name) != value.shape:
            spare[name] = value.shape
        elif rule.to:
            try:
                if rule.to in found or rule.to not in shapes:
                    raise ValueError(f"{rule.to} is {'taken already' if rule.to in found else 'no variable'}")
                found[rule.to] = _made(rule, value, tensors, shapes[rule.to])
            except (ValueError, TypeError) as error:
                tensor = _with_closest(name, value.shape, shapes)
                raise UserError(f"{where}, rule {rule.pattern}, {tensor}: {in_one_line(error)}") from error
            used.add(rule.gain)
    lacking = {
        name: shape
        for name, shape in shapes.items()
        if name not in found and not any(rule.keep and rule.of(name) for rule in rules)
    }
    left = [_with_closest(name, shape, lacking or shapes) for name, shape in spare.items() if name not in used]
    if left or lacking:
        variables = list_some([f"{name} {shape}" for name, shape in lacking.items()] or ["none"], 10)
        idle = [rule.pattern for rule in rules if not any(map(rule.of, shapes if rule.keep else tensors))]
        unused = f"rules that fit no name: {list_some(idle)}; " if idle else ""
        raise UserError(
            f"{where}: {len(left)} tensors without a variable: {list_some(left or ['none'], 10)}; {len(lacking)} "
            f"variables without a tensor: {variables}; {unused}--init-map print writes rules"
        )
    return found


def _with_closest(name: str, shape: Shape, others: Shapes) -> str:
    """A name with its shape and, of others, the one of the closest shape."""
    size = math.prod(shape)
    closest = min(others, key=lambda name: (sorted(others[name]) != sorted(shape), abs(math.prod(others[name]) - size)))
    return f"{name} {shape} (closest {closest} {others[closest]})"


def _made(rule: Rule, value: np.ndarray, tensors: Tensors, shape: Shape) -> np.ndarray:
    """The value that a rule makes of a tensor for a variable of this shape."""
    if rule.gain:
        if (norms := tensors.get(rule.gain)) is None:
            raise ValueError(f"there is no gain {rule.gain}")
        within = tuple(axis for axis in range(value.ndim) if norms.ndim == 0 or norms.shape[axis] == 1)
        value = norms * value / np.sqrt(np.sum(np.square(value, dtype=np.float64), axis=within, keepdims=True))
    value = value.reshape([*rule.shape] or value.shape)
    if rule.turn:
        before, _, after = rule.turn.partition("->")
        if len({*before}) != len(before) or sorted(before) != sorted(after):
            raise ValueError(f"turn {rule.turn} does not have the same axes on both sides, as in OIHW->HWIO")
        value = value.transpose([before.index(axis) for axis in after])
    value = value.reshape(shape) if rule.shape else value
    if value.shape != shape:
        raise ValueError(f"it becomes {value.shape}, and {rule.to} is {shape}")
    return value


def proposed(tensors: Tensors, shapes: Shapes, network: str) -> Iterator[str]:
    """Write a map of PyTorch's names in lines: each layer takes the first module whose tensors fit."""
    modules = _by_owner(name for name in tensors if name not in shapes)
    yield f"[{network}]"
    for variables in _by_owner(name for name in shapes if name not in tensors).values():
        pairs = {module: _paired(variables, words, tensors, shapes) for module, words in modules.items()}
        fits = [module for module, rules in pairs.items() if rules]
        for rule in pairs[fits[0]] if fits else [Rule(name, keep=True) for name in variables.values()]:
            facts = {key: value for key, value in rule._asdict().items() if value and key != "pattern"}
            made = ", ".join(f"{key} = {json.dumps(value)}" for key, value in facts.items())
            remark = f"one of {len(fits)} that fit" if fits[1:] else "" if fits else "no tensor fits"
            if rule.turn == "OI->IO":
                remark = f"{remark}; behind a Flatten: shape = [O, C, H, W], turn = OCHW->HWCO".removeprefix("; ")
            yield f"{json.dumps(rule.pattern)} = {{{made}}}{'  # ' * bool(remark)}{remark}"
        modules = {module: words for module, words in modules.items() if module not in fits[:1]}
    for name in (name for words in modules.values() for name in words.values()):
        yield f'{json.dumps(name)} = ""  # {tensors[name].shape} fits no variable'


def _by_owner(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Names by the layers or modules that own what they name, and by their last words."""
    found = dict[str, dict[str, str]]()
    for name in names:
        # A weight normalisation has two sorts of names: weight_g and weight_v, and these.
        plain = name.replace("parametrizations.weight.original0", "weight_g")
        *owner, word = re.split(r"[./]", plain.replace("parametrizations.weight.original1", "weight_v"))
        found.setdefault("/".join(owner), {})[word.removesuffix(":0")] = name  # as in files of Keras 2
    return found


def _paired(variables: Mapping[str, str], words: Mapping[str, str], tensors: Tensors, shapes: Shapes) -> list[Rule]:
    """Rules that give a layer's variables all tensors of a module, both by their last words; none if one is left."""
    rules = list[Rule]()
    for word, name in variables.items():
        tensor, gain, shape = words.get(word) or words.get(_OF_PYTORCH.get(word, "weight"), ""), "", shapes[name]
        if not tensor and word == "kernel":
            tensor, gain = words.get("weight_v", ""), words.get("weight_g", "")
        space = "DHW"[5 - len(shape) :]
        turns = (f"OI{space}->{space}IO", ()), (f"IM{space}->{space}IM", [*shape[-2:], *shape[:-2]])  # or depthwise
        for turn, split in turns if word == "kernel" and word not in words else [("", ())]:
            with contextlib.suppress(KeyError, ValueError):
                _made(rule := Rule(tensor, name, turn, split, gain), tensors[tensor], tensors, shape)
                rules.append(rule)
                break
    used = {name for rule in rules for name in (rule.pattern, rule.gain)}
    return rules if len(rules) == len(variables) and used >= {*words.values()} else []
