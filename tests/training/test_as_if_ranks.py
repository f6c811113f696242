"""--dry-run --as-if-ranks N: what N ranks would do, and each mistake that only N ranks have, on one."""

import sys

from launching import run

WORDS = "--recipe tiny:Tiny --image-size 8 --data digits --global-batch-size 24 --accumulate 3 --run-dir run".split()


def as_if(folder, *words):
    return run([sys.executable, "-m", "hvdgan.train", *WORDS, *words], folder, forked=True)


def test_what_eight_ranks_would_do(tmp_path):
    done = as_if(tmp_path, "--dry-run", "--as-if-ranks", "8")
    assert done.returncode == 0, done.stderr
    assert (
        "as if on 8 ranks: 3 samples of 24 a rank and step in 3 micro-batches; an epoch has 74.875 steps" in done.stdout
    )
    # Of 1,232 + 1,057 weights 4 bytes each go 2 * 7 / 8 times over 10 Gbit/s.
    assert "stage adversarial: all-reduces 0.01 MB a step: 0.0128 ms at 10 Gbit/s" in done.stdout
    assert not list(tmp_path.iterdir())


def test_what_they_could_not_do_is_one_line(tmp_path):
    for words, line in (
        (["--dry-run", "--as-if-ranks", "5"], "cannot be split evenly over 5 ranks; take 20 or 25"),
        (["--dry-run", "--as-if-ranks", "24"], "--accumulate 3: a rank's 1 images"),
        (["--as-if-ranks", "4"], "--as-if-ranks 4: is for --dry-run"),
    ):
        done = as_if(tmp_path, *words)
        assert done.returncode == 2 and line in done.stderr.splitlines()[-1], done
