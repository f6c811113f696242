"""Micro-batches of volumes and of fields: without BatchNorm they give the metrics of the whole batch."""

import pytest

from building import data_of, stage_step, tiny_run
from hvdgan.cli.data_config import ArrayConfig
from hvdgan.recipes.calo3d import Calo3D, Calo3DOptions
from hvdgan.recipes.downscale import Downscale, DownscaleOptions
from small import settings, write_showers
from tiny_arrays import pairs


def showers(folder, **more):
    write_showers(folder / "showers.npz")
    options = Calo3DOptions(nf=2, latent_size=4, steps=4, r1_every=1)
    return tiny_run(Calo3D, options, **settings("calo3d", folder), **more)


def fields(folder, **more):
    pairs(folder / "p.npz")
    arrays = ArrayConfig(constants="ground", values="standard", input_values="standard", constant_values="none")
    options = DownscaleOptions(nf=2, blocks=1, noise_channels=3, steps=4)
    return tiny_run(Downscale, options, data=str(folder / "p.npz"), arrays=arrays, image_size=None, **more)


@pytest.mark.long
@pytest.mark.parametrize("build", [showers, fields])
def test_two_micro_batches_give_the_metrics_of_one(tmp_path, build):
    """Of the second step, too, which sees the weights that the first has changed."""
    found = []
    for count in (1, 2):
        run = build(tmp_path, accumulate=count)
        steps = [stage_step(run)(number, number, data_of(run, number))[0] for number in range(2)]
        found.append({(number, name): float(each) for number, step in enumerate(steps) for name, each in step.items()})
    whole, parts = found
    assert parts == pytest.approx(whole, rel=1e-3, abs=1e-5) and len(whole) > 8
    assert parts != whole  # the sums have another order, so the batch has really been cut
