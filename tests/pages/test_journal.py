"""What a page takes from the log of a real run: networks, stages, data, ranks and hosts."""

from hvdgan.pages.reading.journal import read
from hvdgan.pages.reading.untrusted import Folder
from hvdgan.train import main

FLAGS = "--recipe tiny:Staged --image-size 8 --global-batch-size 8 --steps 3 --log-every 1".split()


def test_a_start_is_read_as_it_is_written(tmp_path):
    assert main([*FLAGS, "--run-dir", str(tmp_path), "--max-steps", "4"]) == 0
    assert main([*FLAGS, "--run-dir", str(tmp_path)]) == 0
    journal = read(Folder(tmp_path))
    assert (journal.starts, journal.restarts.kept, journal.ended) == (2, [4], "finished")
    assert (journal.ranks, journal.launcher) == (1, "none")
    assert [name for name, *_ in journal.networks] == ["generator", "discriminator"]
    generator = 8 * 16 + 16 + 16 * 64 + 64
    assert journal.networks[0][1:] == (f"{generator:,}", "0")
    assert [(made.name, made.steps, [update[:3] for update in made.updates]) for made in journal.stages] == [
        ("generator", "3", [("fool", "generator", "every step")]),
        ("discriminator", "3", [("judge", "discriminator", "every step")]),
        ("joint", "3", [("judge", "discriminator", "every step"), ("fool", "generator", "every step")]),
    ]
    assert journal.data == ["digits, 1,797 pictures of shape (8, 8, 1) in 10 classes"]
    assert journal.machine[0].startswith("hvdgan ") and any("CPU" in line for line in journal.machine)


def test_long_lines_and_many_ranks_are_put_together(tmp_path):
    (tmp_path / "log.txt").write_text(
        "2026-11-25 10:00:00 hvdgan 1.0, recipe my.long:GAN; Python 3\n"
        "2026-11-25 10:00:00 networks: a 1,000 trainable parameters, 2 other;\n"
        "2026-11-25 10:00:00     b 3 trainable parameters, 4 other\n"
        "2026-11-25 10:00:00 stage both, 5,000 steps: judge owns b and all-reduces 12 bytes;\n"
        "2026-11-25 10:00:00     fool owns a, c and all-reduces 4,000 bytes, every 5 steps …\n"
        "2026-11-25 10:00:00 8 rank(s) on 2 host(s), launcher srun, controller MPI; 4 images each per step\n"
        "2026-11-25 10:00:00 run folder /a: b:\n"
        "2026-11-25 10:00:00     resuming at step 70 of 5000; its config.json has every setting\n"
        "2026-11-25 10:00:01 done: 5000 steps; samples in /a\n"
    )
    journal = read(Folder(tmp_path))
    assert journal.networks == [("a", "1,000", "2"), ("b", "3", "4")]
    assert journal.stages[0].updates == [("judge", "b", "every step", "all-reduces 12 bytes")]
    assert (journal.ranks, journal.launcher, journal.restarts.kept, journal.ended) == (8, "srun", [70], "finished")


def test_a_last_paragraph_that_an_older_log_has_cut_ends_a_start(tmp_path):
    (tmp_path / "log.txt").write_text(
        "2026-11-25 10:00:00 hvdgan 1.0, recipe my.long:GAN; Python 3\n"
        "2026-11-25 10:00:00 stage both, 5,000 steps: judge owns b\n"
        f"2026-11-25 10:00:00 run folder /a: b/{100 * 'x'}: …\n"
        "2026-11-25 10:00:01 skipped a.png: no picture\n"
        "2026-11-25 10:00:02 done: 5000 steps; samples in /a\n"
    )
    journal = read(Folder(tmp_path))
    assert (journal.starts, journal.ended, journal.skipped_files.count) == (1, "finished", 1)


def test_a_skipped_file_counts_once_however_often_a_run_begins(tmp_path):
    date = "2026-11-25 10:00:00 "
    skipped = f"{date}skipped a.png: no picture\n{date}skipped b.png: no picture\n"
    (tmp_path / "log.txt").write_text(skipped + skipped)
    files = read(Folder(tmp_path)).skipped_files
    assert (files.count, files.lines) == (2, ["a.png: no picture", "b.png: no picture"])


def test_files_whose_names_contain_a_colon_are_different_files(tmp_path):
    lines = [f"2026-11-25 10:00:00 skipped Screen: {number}.png: no picture\n" for number in range(5)]
    (tmp_path / "log.txt").write_text("".join(lines))
    assert read(Folder(tmp_path)).skipped_files.count == 5


def test_a_paragraph_without_end_is_cut(tmp_path):
    date, network = "2026-11-25 10:00:00 ", "a 1,000 trainable parameters, 2 other"
    endless = f"{date}    {200 * 'x'}\n" * 5000
    (tmp_path / "log.txt").write_text(
        f"{date}hvdgan 1.0, recipe my.long:GAN; Python 3\n"
        f"{date}networks: {network};\n{date}    {network};\n{endless}"
        f"{date}2 rank(s) on 1 host(s), launcher none, {50_000 * 'x'}\n{endless}"
        f"{date}run folder /a: a new run\n{date}done: 4 steps\n"
    )
    journal = read(Folder(tmp_path))
    assert (journal.networks, journal.ended) == ([("a", "1,000", "2")] * 2, "finished")
    assert [len(line) < 11_000 for line in journal.machine] == [True] * 3
