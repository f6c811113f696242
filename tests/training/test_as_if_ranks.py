"""--dry-run --as-if-ranks N: what N ranks would do, and each mistake that only N ranks have, on one."""

from hvdgan.train import main

WORDS = "--recipe tiny:Tiny --image-size 8 --data digits --global-batch-size 24 --accumulate 3 --run-dir run".split()


def test_what_eight_ranks_would_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--dry-run", "--as-if-ranks", "8"]) == 0
    said = capsys.readouterr().out
    assert "8 ranks: 3 samples of 24 a rank and step in 3 micro-batches; an epoch has 74.875 steps" in said
    # Of 1,232 + 1,057 weights 4 bytes each go 2 * 7 / 8 times over 10 Gbit/s.
    assert "stage adversarial: all-reduces 0.01 MB a step: 0.0128 ms at 10 Gbit/s" in said
    assert not list(tmp_path.iterdir())


def test_what_they_could_not_do_is_one_line(capsys):
    for words, line in (
        (["--dry-run", "--as-if-ranks", "5"], "cannot be split evenly over 5 ranks; take 20 or 25"),
        (["--dry-run", "--as-if-ranks", "24"], "--accumulate 3: a rank's 1 images"),
        (["--as-if-ranks", "4"], "--as-if-ranks 4: is for --dry-run"),
    ):
        assert main([*WORDS, *words]) == 2 and line in capsys.readouterr().err.splitlines()[-1]
