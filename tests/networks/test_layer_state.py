"""State that layers keep beside their weights: averaged over the ranks, saved exactly, or refused.
Modules: networks.layers, training.train_state"""

import sys

import numpy as np

from launching import CONTROLLERS, launcher, run, train
from saved import tensors

SIZE = ("--image-size", "8", "--global-batch-size", "16", "--norm", "batch", "--run-dir", "run")
CONTROLLER = CONTROLLERS[-1]


def test_state_that_is_the_same_on_all_ranks_is_saved_exactly_and_resumes_with_any_number_of_them(tmp_path):
    for steps, ranks in ((2, 2), (4, 1)):
        train(tmp_path, "--recipe", "tiny:Counting", *SIZE, "--steps", str(steps), ranks=ranks, controller=CONTROLLER)
        saved = tensors(tmp_path / "run", steps)
        calls = 2 * steps  # real and fake, by the update that owns the network
        for kind in ("whole", "wide"):
            count = saved[f"networks/discriminator/judging/keeps/{kind}"]
            assert count == 2**40 + 1 + calls and count.dtype == {"whole": np.int64, "wide": np.float64}[kind]
        assert saved["networks/discriminator/judging/keeps/odd"].dtype == bool
        if ranks == 2:  # BatchNorm's statistics and their averages, and nothing of the counter
            everyones = {name: rows.shape for name, rows in saved.items() if name.startswith("ranks/")}
            assert len(everyones) == 6 and set(everyones.values()) == {(2, 16)}, everyones


def test_state_that_depends_on_the_samples_of_a_rank_is_refused_by_name_after_the_first_step(tmp_path):
    command = [*launcher(2, CONTROLLER), sys.executable, "-m", "hvdgan.train", "--recipe", "tiny:Pooled", *SIZE]
    done = run(command, tmp_path, forked=True)
    assert done.returncode in {1, 2}, done.stdout + done.stderr  # horovodrun over Gloo makes a 1 of a rank's 2
    named = "step 1, stage adversarial: network discriminator, layer keeps: judging/keeps/images differs between the"
    said = [line for line in done.stderr.splitlines() if named in line]
    assert said and all('aggregation="mean"' in line and "declare it in state()" in line for line in said), done.stderr
    assert "<stderr>:Traceback" not in done.stderr  # of a rank; over Gloo horovodrun prints its own
    assert not list(tmp_path.glob("run/checkpoints/step-*"))
