"""A run with a Keras and a TensorFlow that have lost the private names which hvdgan reads.
Modules: networks.nested_layers, training.repeatable"""

import sys

import numpy as np

from launching import ROOT, run, train
from saved import tensors

DCGAN = "--recipe dcgan --nf 2 --steps 5 --global-batch-size 8 --image-size 32 --sample-every 0".split()
WARNINGS = [
    "has no list of nested layers; they are looked for in the layers' attributes",
    "has no list of the variables that a layer creates; frozen weights count as its state",
    "hvdgan's fast kernels were not tested with Keras 3.99.0; Keras' slower ones are used",
    "does not show the functions inside a graph; random draws and collectives in them are not looked for",
]


def test_a_run_continues_without_private_names_and_says_so_once(tmp_path):
    train(tmp_path, *DCGAN, "--run-dir", "plain")
    done = run([sys.executable, ROOT / "tests" / "support" / "newer.py", *DCGAN, "--run-dir", "newer"], tmp_path)
    assert done.returncode == 0, done.stderr
    for warning in WARNINGS:
        assert done.stderr.count(warning) == 1, done.stderr
    plain, newer = (tensors(tmp_path / name, 5) for name in ("plain", "newer"))
    assert plain.keys() == newer.keys()
    for name in plain:
        np.testing.assert_allclose(newer[name], plain[name], rtol=1e-3, atol=1e-4, err_msg=name)
