"""What a run says when there is too little memory; after a stage: tests/commands/test_train.py.
Modules: training.memory"""

import re
import sys

from launching import run

ARGUMENTS = "--recipe hungry:Hungry --image-size 8 --global-batch-size 16 --report never --run-dir run".split()


def test_out_of_memory_is_one_line(tmp_path):
    done = run([sys.executable, "-m", "hvdgan.train", *ARGUMENTS], tmp_path, forked=True, HVDGAN_HUNGRY="0")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("hvdgan: ")]
    assert re.fullmatch(
        r"hvdgan: rank 0 is out of memory at step 2, stage adversarial: no room for a tensor with shape"
        r"\[281474976710656\] and type float, for \S*; "
        r"try --accumulate 2, a smaller --global-batch-size or smaller networks",
        line,
    ), line
    assert "stopped: rank 0 is out of memory" in (tmp_path / "run" / "log.txt").read_text()
