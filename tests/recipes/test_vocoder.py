"""The programs of the example with a vocoder: its spectrograms, Griffin-Lim, and what it compares.

tests/gallery trains it on two ranks, and resumes it.
"""

import importlib
import re

import numpy as np
import pytest

from hvdgan.train import main as train
from launching import ROOT
from wave_files import LENGTHS, write_waves


@pytest.fixture
def program(tmp_path, monkeypatch):
    """The module of the example, in a folder with waves."""
    write_waves(tmp_path / "speech")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")
    return importlib.import_module("my_vocoder")


def test_mel_filters_are_those_of_others(program):
    """These are librosa 0.11's: librosa.filters.mel(sr=22050, n_fft=1024, n_mels=80, fmin=0, fmax=8000)."""
    filters = program.mel_filters(22050)
    bins = np.arange(len(filters)) * 22050 / 1024
    centres = (filters * bins[:, None]).sum(axis=0) / filters.sum(axis=0)
    np.testing.assert_allclose(centres[[20, 79]], [780.5621, 7702.539], rtol=1e-4)
    np.testing.assert_allclose(filters.max(axis=0)[[0, 20, 79]], [0.02265139, 0.02192963, 0.003265993], rtol=1e-4)


@pytest.mark.long
def test_griffin_lim_is_nearer_to_the_spectrograms_than_other_waves(program, capsys):
    program.write_mels("speech", "mels.npz")
    with np.load("mels.npz") as mels:
        shapes = [mels[str(number)].shape for number in range(len(LENGTHS))]
    assert shapes == [(length // program.HOP, program.MELS) for length in LENGTHS]
    program.compare("speech", "speech", "spectrograms.png")
    same, griffin_lim = map(float, re.findall(r"\d\.\d+", capsys.readouterr().out))
    assert same == 0 < griffin_lim < 0.3


def test_other_data_are_refused(program, capsys):
    assert train("--recipe my_vocoder:MyVocoder --data digits --run-dir other".split()) == 2
    assert "expected wave files, and --segment a multiple of 256" in capsys.readouterr().err
