"""Groups of gradients: three ranks repeat their bits.

tests/parallel/test_groups.py looks for the groups in the graphs of two ranks.
"""

from hvdgan.checkpoints import files
from launching import train

FLAGS = "--recipe tiny:Wide --image-size 8 --global-batch-size 12 --steps 4 --log-every 2 --sample-every 0".split()


def test_three_ranks_repeat_their_bits(tmp_path):
    found = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        train(tmp_path / name, *FLAGS, "--run-dir", "run", ranks=3)
        found.append(dict(files.read_tensors(files.newest(tmp_path / name / "run" / "checkpoints"))))
    for name, value in found[0].items():
        assert value.tobytes() == found[1][name].tobytes(), name
