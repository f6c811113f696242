"""The check that the input keeps up: what it counts, and its messages."""

from hvdgan.cli.config import Config
from hvdgan.distributed.ranks import Ranks
from hvdgan.training.observations import InputCheck, input_speed


def test_the_first_steps_do_not_count_and_it_is_logged_once():
    logged = []
    check = InputCheck(Ranks(), Config(), logged.append, prepared=False, steps=9)
    for step in range(12):
        check.add(10.0 if step < 5 else 0.5, 100.0 if step < 5 else 2.0)
        assert len(logged) == (step >= 8)
    assert "rank 0 waits for images 25% of the time" in logged[0].text


def test_a_bottleneck_names_the_slowest_rank_both_rates_and_what_helps():
    config = Config(global_batch_size=64)
    line = input_speed([[0.1, 1.0], [0.75, 1.0]], config, threads=3, prepared=False).line
    assert line.startswith("warning: input is the bottleneck: rank 1 waits for images 75% of the time; ")
    assert "the pipeline reads 64 images/s, and the steps could take 256" in line
    assert "python -m hvdgan.prepare" in line and "--pipeline.cache" in line
    assert "--pipeline.threads" in line and "now 3" in line
    assert "prepare" not in input_speed([[0.75, 1.0]], config, threads=3, prepared=True).line  # is done already
    assert input_speed([[0.05, 1.0]], config, threads=3, prepared=False).line.startswith(
        "input keeps up: 5% of the first"
    )
