"""The check that the input keeps up: what it counts, and its messages."""

from hvdgan.cli.config import Config, PipelineConfig
from hvdgan.distributed.ranks import Ranks
from hvdgan.train import main
from hvdgan.training.observations import InputCheck, verdict


def test_the_first_steps_do_not_count_and_the_verdict_is_logged_once():
    logged = []
    check = InputCheck(Ranks(), Config(), logged.append, prepared=False, steps=9)
    for step in range(12):
        check.add(10.0 if step < 5 else 0.5, 100.0 if step < 5 else 2.0)
        assert len(logged) == (step >= 8)
    assert "rank 0 waits for images 25% of the time" in logged[0].text


def test_input_that_keeps_up_is_reported_in_few_words():
    line = verdict([[0.01, 1.0], [0.05, 1.0]], Config(), threads=2, prepared=False).line
    assert line == "input keeps up: 5% of the first 100 steps was spent waiting for images"


def test_a_bottleneck_names_the_slowest_rank_both_rates_and_what_helps():
    config = Config(global_batch_size=64)
    line = verdict([[0.1, 1.0], [0.75, 1.0]], config, threads=3, prepared=False).line
    assert line.startswith("warning: input is the bottleneck: rank 1 waits for images 75% of the time; ")
    assert "the pipeline reads 64 images/s, and the steps could take 256" in line
    assert "python -m hvdgan.prepare" in line and "--pipeline.cache" in line
    assert "--pipeline.threads" in line and "now 3" in line


def test_what_is_done_already_is_no_remedy():
    config = Config(pipeline=PipelineConfig(cache="memory"))
    line = verdict([[0.75, 1.0]], config, threads=1, prepared=True).line
    assert "prepare" not in line and "cache" not in line and "--pipeline.threads" in line


def test_a_run_logs_it_once(tmp_path):
    """Which of the two, the machine decides."""
    arguments = "--recipe tiny:Tiny --image-size 8 --global-batch-size 8 --steps 110 --data digits --sample-every 0"
    assert main([*arguments.split(), "--run-dir", str(tmp_path / "run")]) == 0
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("input keeps up: ") + log.count("input is the bottleneck: ") == 1
