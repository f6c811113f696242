"""Folders of wave files: segments that are drawn, the same on any number of ranks; and what is refused or named.
Modules: files.wav"""

import os

import numpy as np
import pytest

import saved
from hvdgan.data import BadImage, open_source
from hvdgan.errors import RunError, UserError
from hvdgan.files.wav import as_wav, load_wav, save_wav
from hvdgan.settings.config import Config, PipelineConfig
from hvdgan.settings.data import ArrayConfig
from reading import batches_of
from thread_ranks import Threads

soundfile = pytest.importorskip("soundfile")
LENGTHS = {"b/x.wav": 3000, "a/long.flac": 2000, "a/short.wav": 40, "a/just.WAV": 64}
SEGMENT, RATE = 64, 8000


def ramp(number, length):
    """A wave whose samples tell the file and the place, as integers of 16 bits."""
    return (np.arange(length) + 4000 * number).astype(np.int16)


def write(path, samples, rate=RATE):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, format=path.suffix[1:].upper())


@pytest.fixture
def folder(tmp_path):
    """Files of unequal length in the folders of two speakers."""
    for number, (name, length) in enumerate(LENGTHS.items()):
        write(tmp_path / "speech" / name, ramp(number, length))
    return tmp_path / "speech"


def opened(path, segment=SEGMENT, *, paired=False, arrays=None, **changes):
    settings = ArrayConfig(segment=segment, **(arrays or {}))
    return open_source(Config(data=str(path), arrays=settings, **changes), paired=paired)


def taken(source, steps, **how):
    """What the batches of some steps show: indices and samples as integers."""
    with batches_of(source, global_batch_size=8, **how) as batches:
        some = [next(batches) for _ in range(steps)]
    return [(each["index"].numpy(), each["images"].numpy()[..., 0] * 2**15) for each in some]


def test_each_reading_draws_a_segment_by_its_place_in_the_order(folder):
    """Two ranks together see what one sees, and a run that resumes sees the rest."""
    source = opened(folder)
    names = [source.named(index) for index in range(4)]
    assert names == sorted(LENGTHS) and source.labels.tolist() == [0, 0, 0, 1] and source.class_names == ["a", "b"]
    assert (source.rate, source.layout.shape) == (RATE, (SEGMENT, 1))
    one, firsts = taken(source, 6), []
    for index, waves in (pair for step in one for pair in zip(*step, strict=True)):
        number, length = [*LENGTHS].index(names[index]), LENGTHS[names[index]]
        count = min(length, SEGMENT)
        first = int(waves[0]) - 4000 * number
        np.testing.assert_array_equal(waves[:count], ramp(number, length)[first : first + count])
        assert not waves[count:].any() and len(waves) == SEGMENT
        firsts += [first] * (length > 1000)
    assert len(set(firsts)) > 0.9 * len(firsts) and np.ptp(firsts) > 1500
    ranks = [taken(source, 6, rank=rank, size=2) for rank in range(2)]
    for step in range(6):
        for part in range(2):
            np.testing.assert_array_equal(one[step][part], np.concatenate([rank[step][part] for rank in ranks]))
    for expected, found in zip(one[4:], taken(source, 2, start_step=4), strict=True):
        np.testing.assert_array_equal(found[1], expected[1])


def test_evaluations_and_grids_see_the_middle(folder):
    samples = opened(folder).fetch_batch(np.arange(4))["images"][..., 0] * 2**15
    assert samples[:, 0].tolist() == [4000 * 3, 4000 + (2000 - SEGMENT) // 2, 4000 * 2, (3000 - SEGMENT) // 2]


def stereo(path):
    write(path / "c.wav", np.zeros((99, 2), np.int16))


@pytest.mark.parametrize(
    ("spoil", "changes", "words"),
    [
        (stereo, {}, r"c.wav has 2 channel\(s\) of 8,000 .*; expected 1 of 8,000, as in a/just.WAV"),
        (
            lambda path: write(path / "c.wav", ramp(0, 99), 16000),
            {},
            "c.wav has .* of 16,000 samples per second; expected 1 of 8,000",
        ),
        (lambda path: write(path / "c.wav", ramp(0, 0)), {}, r"1 of 5 samples .* c.wav \(no samples\)"),
        (lambda path: (path / "c.wav").touch(), {}, r"c.wav \(empty file\)"),
        (lambda path: (path / "c.flac").write_text("text" * 99), {}, r"c.flac \(Format not recognised\)"),
        (lambda path: (path / "c.npy").touch(), {}, "files of two kinds"),
        (None, {"segment": None}, "waves of 40 to 3,000 samples, 8,000 per second; .* --segment 8192"),
        (None, {"paired": True}, "the recipe takes pairs"),
        (None, {"pipeline": PipelineConfig(cache="memory")}, "--pipeline.cache memory"),
        (None, {"arrays": {"values": "standard"}}, "--values standard: .* waves"),
        (None, {"image_size": 8}, "--image-size"),
    ],
)
def test_what_a_run_cannot_use_is_refused_with_what_was_expected(folder, spoil, changes, words):
    if spoil:
        spoil(folder)
    with pytest.raises(UserError, match=words) as caught:
        opened(folder, **changes)
    assert "\n" not in str(caught.value)


def test_bad_files_are_set_aside_by_name_or_found_when_they_are_read(folder):
    (folder / "c.wav").touch()
    soundfile.write(folder / "a" / "loud.wav", np.full(99, 3e4, np.float32), RATE, subtype="FLOAT")
    os.truncate(folder / "a" / "long.flac", 200)
    source = opened(folder, max_bad_fraction=0.5)
    assert [*source.bad_files] == [("c.wav", "empty file")] and len(source) == 5 and source.total == 6
    for name in ("a/long.flac", "a/loud.wav"):
        index = next(index for index in range(5) if source.named(index) == name)
        with pytest.raises(BadImage) as caught:
            source.fetch(index)
        assert caught.value.bad_file.name == name


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # nor can it be measured
def test_a_disk_that_fails_is_no_bad_file(folder):
    """A read of this file at its beginning fails as one of a broken disk does."""
    (folder / "a" / "new.wav").symlink_to("/proc/self/mem")
    with pytest.raises(RunError, match="a/new.wav: Input/output error: the disk"):
        opened(folder, max_bad_fraction=0.9)


def test_ranks_share_the_headers_and_agree(folder):
    (folder / "a" / "empty.wav").touch()
    found = []
    errors = Threads().run(
        lambda peers: found.append(
            open_source(Config(data=str(folder), arrays=ArrayConfig(segment=8), max_bad_fraction=0.5), peers=peers)
        )
    )
    assert errors == [None, None]
    assert len({(each.fingerprint, tuple(each.bad_files), each.rate) for each in found}) == 1


def test_segments_are_for_waves_alone(capsys, tmp_path):
    assert saved.train(tmp_path / "run", "--segment", "8", "--data", "digits") == 2
    assert "--segment 8: is for wave files" in capsys.readouterr().err


def test_a_wav_comes_back_within_half_a_step_and_a_damaged_one_is_named(tmp_path):
    samples = np.random.default_rng(0).uniform(-1.2, 1.2, (500, 1))
    save_wav(tmp_path / "x.wav", samples, RATE)
    found, rate = load_wav(tmp_path / "x.wav", 10_000)
    assert rate == RATE and soundfile.info(tmp_path / "x.wav").subtype == "PCM_16"
    np.testing.assert_allclose(found, np.clip(samples, -1, 1), atol=0.51 / 32767)
    assert len(load_wav(tmp_path / "x.wav", 200)[0]) == 100
    for content in (b"", as_wav(samples, RATE)[:30], b"RIFF" * 20):
        (tmp_path / "x.wav").write_bytes(content)
        with pytest.raises(ValueError, match="."):
            load_wav(tmp_path / "x.wav", 200)
