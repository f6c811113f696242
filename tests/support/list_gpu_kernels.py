"""Writes the list of kernels that a TensorFlow with CUDA, and Horovod's operations, have for GPUs: gpu_kernels.txt.

The wheel `tensorflow` for x86-64 has its kernels for GPUs compiled in, and can be imported without a GPU, without CUDA
and without the packages nvidia-*. In an empty environment outside of this repository:

    pip install tensorflow==2.21.0
    pip download --no-deps --no-binary :all: --no-build-isolation horovod==0.28.1
    python tests/support/list_gpu_kernels.py horovod-0.28.1.tar.gz > tests/support/gpu_kernels.txt
"""

import re
import sys
import tarfile
from collections.abc import Iterable, Iterator

import tensorflow as tf
from tensorflow.python.framework import kernels

_HEAD = """\
# Kernels for GPUs of TensorFlow {version} (the wheel with CUDA), and of the Horovod in {horovod}.
# Made by tests/support/list_gpu_kernels.py, which says how. A line has an operation, the types of its attributes, and
# after @ the arguments that are in the memory of the host; the first line of an operation that fits is its kernel.
"""
_SOURCE = "horovod/tensorflow/mpi_ops.cc"

Types = tuple[tuple[str, frozenset[str]], ...]
"""for each attribute that decides, the types that it may have"""


def of_tensorflow() -> Iterator[str]:
    """The lines of all kernels of this TensorFlow that a GPU can use: those of GPUs, then those of any device."""
    found: dict[tuple[str, bool, tuple[str, ...]], set[Types]] = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        if kernel.device_type not in ("GPU", "DEFAULT") or kernel.label:
            continue
        types = tuple(
            (each.name, frozenset(tf.as_dtype(value).name for value in each.allowed_values.list.type))
            for each in sorted(kernel.constraint, key=lambda each: each.name)
        )
        on_host = tuple(sorted(kernel.host_memory_arg))
        found.setdefault((kernel.op, kernel.device_type == "DEFAULT", on_host), set()).add(types)
    for (operation, _, on_host), several in sorted(found.items()):
        for types in sorted(_joined(several), key=_words):
            yield " ".join([operation, *_words(types), *([f"@ {' '.join(on_host)}"] if on_host else [])])


def _joined(several: Iterable[Types]) -> set[Types]:
    """The same kernels, where those that differ in one attribute are one."""
    kept = set(several)
    for name in sorted({name for types in kept for name, _ in types}):
        together: dict[Types, frozenset[str]] = {}
        alone = set()
        for types in kept:
            others = tuple(each for each in types if each[0] != name)
            if others == types:
                alone.add(types)
            else:
                together[others] = together.get(others, frozenset()) | dict(types)[name]
        kept = alone | {tuple(sorted([*others, (name, values)])) for others, values in together.items()}
    return kept


def _words(types: Types) -> list[str]:
    return [f"{name}={','.join(sorted(values))}" for name, values in types]


def of_horovod(archive: str) -> Iterator[str]:
    """The lines of Horovod's kernels for GPUs, from the source of its operations."""
    with tarfile.open(archive) as files:
        name = next(each for each in files.getnames() if each.endswith(_SOURCE))
        source = files.extractfile(name).read().decode()
    operations = {each.split('"')[1]: each for each in source.split("REGISTER_OP(")[1:]}
    registered = re.findall(r"REGISTER_KERNEL_BUILDER\(\s*Name\(([^;]*?)\);", source)
    for each in sorted(registered):
        if "DEVICE_GPU" in each:
            operation = each.split('"')[1]
            types = re.search(r'"T: \{([^}]*)\}"', operations[operation])
            values = [f"T={','.join(sorted(types[1].split(', ')))}"] if types else []
            on_host = sorted(re.findall(r'HostMemory\("(\w+)"\)', each))
            yield " ".join([operation, *values, *([f"@ {' '.join(on_host)}"] if on_host else [])])


if __name__ == "__main__":
    print(_HEAD.format(version=tf.__version__, horovod=sys.argv[1].rpartition("/")[2]), end="")
    # A kernel may be listed twice, for GPUs and for any device.
    print(*dict.fromkeys([*of_tensorflow(), *of_horovod(sys.argv[1])]), sep="\n")
