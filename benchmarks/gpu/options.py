"""Trains DCGAN with each option that changes how a step is computed, on all ranks: finite losses, images/s and memory.

The tests check on the CPU that the options compute the same, or what they say of themselves. Here the compiler, the
collectives and the kernels of GPUs run with them, in each precision.
"""

from collections.abc import Iterator

from gpu.check import Check
from gpu.recipes import flags_of, trained
from gpu.setting import Setting

STEPS, QUICK_STEPS = 40, 4
OPTIONS = {
    "none": [],
    "jit": ["--jit"],
    "accumulate": ["--accumulate", "2"],
    "compression": ["--compression", "fp16"],
    "sync-batch-norm": ["--sync-batch-norm"],
}
"""flags by the name of the check; "none" is for comparison"""


def checks(setting: Setting) -> Iterator[Check]:
    """Train with each option in each precision."""
    batch, size = (4, "32") if setting.small else (64, "64")
    steps = QUICK_STEPS if setting.quick else STEPS
    words = ["--recipe", "dcgan", "--data", "synthetic", "--image-size", size]
    words += ["--global-batch-size", str(batch * setting.most), *flags_of("dcgan", steps, small=setting.small)]
    for precision in setting.precisions:
        for option, flags in OPTIONS.items():
            given = [*words, "--precision", precision, *flags]
            yield trained(setting, "options", f"{option}-{precision}", given, setting.most)
