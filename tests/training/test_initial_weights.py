"""Networks that begin with weights of other programs: what is taken, what is refused, and what says so afterwards.
Modules: training.initial_weights, checkpoints.foreign_weights"""

import dataclasses
import hashlib
import json
import shutil
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from keras import layers
from safetensors.numpy import save_file

import ported
from building import changed, data_of, tiny_run, trained, values_of
from hvdgan.diagnostics.ownership import check_updates, owned_tensors
from hvdgan.distributed.batch_norm import synchronise
from hvdgan.distributed.ranks import Ranks
from hvdgan.errors import UserError
from hvdgan.inference.trained import load_trained
from hvdgan.networks.kernels import use_fast_kernels
from hvdgan.networks.layers import names_in_files
from hvdgan.train import main
from hvdgan.training import initial_weights
from launching import HAS_MPI, launcher
from launching import run as launched
from saved import manifest, tensors, train

HERE = Path(ported.__file__).parent / "of_pytorch"
GENERATOR, RESIDUAL = (HERE / f"{name}.safetensors" for name in ("generator", "residual"))
RULES = (HERE / "residual.toml").read_text()
FLAGS = "--recipe ported:Ported --image-size 16 --global-batch-size 8 --steps 4 --sample-every 0 --report never".split()


def take(run):
    """What the command of a run takes."""
    return initial_weights.take(run.config, run.state, run.recipe)


def proposal(run):
    """The map that it proposes."""
    return "\n".join(initial_weights.proposal(run.config, run.state))


@pytest.fixture(scope="module")
def run():
    return tiny_run(ported.Ported, image_size=16)


@pytest.fixture
def asked(run, tmp_path):
    """The run with files for networks, and rules."""

    def ask(rules="", **files):
        (tmp_path / "rules.toml").write_text(rules)
        given = ",".join(f"{network}={file}" for network, file in files.items())
        by = str(tmp_path / "rules.toml") if rules else None
        return dataclasses.replace(run, config=dataclasses.replace(run.config, init_from=given, init_map=by))

    return ask


def difference(run, name):
    """The largest difference of a network's output from that of PyTorch."""
    kept = np.load(HERE / f"{name}.npz")
    inputs, outputs = (np.moveaxis(kept[each], 1, -1) for each in ("inputs", "outputs"))
    return np.abs(run.state.networks[name](inputs, training=False) - outputs).max()


def test_networks_of_pytorch_compute_what_they_do_there(run, asked):
    """The generator of DCGAN by the proposal as it is; blocks of grouped convolutions by rules with stars."""
    rules = proposal(asked(generator=GENERATOR))
    lines, facts = take(asked(f"{rules}\n{RULES}", generator=GENERATOR, residual=RESIDUAL))
    assert difference(run, "generator") < 1e-5 and difference(run, "residual") < 1e-5
    averages = run.state.sampling_values()["generator"]
    assert averages and all(np.array_equal(variable, average) for variable, average in averages)
    digest = hashlib.sha256(RESIDUAL.read_bytes()).hexdigest()
    assert len(lines) == 2 and digest in lines[1] and facts["residual"]["sha256"] == digest


def test_a_proposal_lacks_only_how_pictures_were_made_flat(run, asked):
    rules = proposal(asked(residual=RESIDUAL))
    take(asked(rules, residual=RESIDUAL))
    assert difference(run, "residual") > 0.1
    take(asked(rules.replace('"OI->IO"', '"OCHW->HWCO", shape = [5, 4, 8, 8]'), residual=RESIDUAL))
    assert difference(run, "residual") < 1e-5


@pytest.fixture(scope="module")
def other():
    """The generator as another program makes and trains it, where Keras numbers the layers from other numbers on."""
    layers.BatchNormalization(), layers.Conv2DTranspose(1, 1)
    network = ported.generator()
    network.compile("adam", "mse")
    network.fit(np.ones((2, 6)), np.zeros((2, 16, 16, 1)), verbose=0)
    return network


@pytest.mark.parametrize("kind", ["x.keras", "x.weights.h5", "x.npz", "x.safetensors"])
def test_every_kind_of_file_gives_its_bits(run, asked, other, tmp_path, kind):
    network = run.state.networks["generator"]
    plain = dict(zip((each.path for each in network.variables), other.get_weights(), strict=True))
    writers = {
        "x.keras": other.save,
        "x.weights.h5": other.save_weights,
        "x.npz": lambda path: np.savez(
            path, **plain, **{"seed_generator_1/seed_generator_state": np.zeros(2, "uint32")}
        ),
        "x.safetensors": lambda path: save_file(plain, path),
    }
    writers[kind](tmp_path / kind)
    take(asked(generator=tmp_path / kind))
    assert [each.tobytes() for each in network.get_weights()] == [each.tobytes() for each in other.get_weights()]


def test_layers_that_compute_in_another_way_have_the_names_of_keras_in_its_files():
    network = ported.generator()
    before = {name: variable.path for name, variable in names_in_files(network).items()}
    synchronise(network.layers[3], Ranks(), 1.0)
    use_fast_kernels([network], [])
    assert len(before) == 11 and {name: each.path for name, each in names_in_files(network).items()} == before


@pytest.mark.parametrize("name", ["x.npz", "x.h5"])
def test_layers_that_keras_has_numbered_otherwise_are_proposed_by_their_order(run, asked, other, tmp_path, name):
    """Also of a model that Keras 2 has saved with its optimizer."""
    if name == "x.npz":
        np.savez(tmp_path / name, **{each.path: each.numpy() for each in other.variables})
    else:
        with h5py.File(tmp_path / name, "w") as file:
            file["optimizer_weights/Adam/iter:0"] = 3
            for each in other.variables:
                file[f"model_weights/{each.path.partition('/')[0]}/{each.path}:0"] = each.numpy()
    take(asked(proposal(asked(generator=tmp_path / name)), generator=tmp_path / name))
    taken = run.state.networks["generator"].get_weights()
    assert [each.tobytes() for each in taken] == [each.tobytes() for each in other.get_weights()]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("residual=x.pth", "cannot be read: a pickle can run any code when it is read; convert it: python -c "),
        ("residual=x.txt", "expected a file .keras, .h5, .npz, .safetensors"),
        ("residual=y.npz", "cannot be read: there is no such file"),
        ("residual=/dev/zero", "cannot be read: there is no such file"),
        ("residual=x.txt#sha256=0", f"its SHA-256 is {hashlib.sha256(b'?').hexdigest()}; restore the file, or leave"),
        (f"critic={RESIDUAL}", "critic is no network of this run, which has generator, discriminator, residual"),
        (f"{RESIDUAL}", "weights of other programs are given as NETWORK=FILE"),
        (f"residual={RESIDUAL}", "31 tensors without a variable: blocks.0.bn1.bias (8,) (closest stem/bias (8,)), "),
        (f"residual={RESIDUAL}", "block_0_bn2/gamma (8,) and 20 more; --init-map print writes rules"),
    ],
)
def test_a_wrong_file_is_one_line(run, given, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("x.pth", "x.txt"):
        Path(name).write_bytes(b"?")
    with pytest.raises(UserError) as error:
        take(dataclasses.replace(run, config=dataclasses.replace(run.config, init_from=given)))
    assert str(error.value).startswith(f"--init-from {given.partition('#')[0]}") and words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["keras", "weights.h5", "npz", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no such file"])
def test_a_damaged_file_is_one_line(asked, tmp_path, kind, content):
    (tmp_path / f"x.{kind}").write_bytes(content)
    with pytest.raises(UserError) as error:
        take(asked(generator=tmp_path / f"x.{kind}"))
    assert f"x.{kind}: cannot be read: " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("right", "wrong", "words"),
    [
        ('turn = "IOHW->HWOI"', "turn = 3", "up.weight: to, turn and gain are texts; --init-map print writes"),
        ("IOHW->HWOI", "IOHW->HWIO", "up.weight (16, 4, 2, 2) (closest up/kernel (2, 2, 4, 16)): it becomes (2, 2, 16"),
        ("OCHW->HWCO", "OCHW->HWC", "turn OCHW->HWC does not have the same axes on both sides"),
        ("[5, 4, 8, 8]", "[5, 4, 8, 9]", "head.weight (5, 256) (closest head/kernel (256, 5)): cannot reshape"),
        ('"*/bias"', '"*/bios"', "depth/bios is no variable"),
        (
            '"block_*_bn*/beta"',
            '"block_0_bn1/beta"',
            "blocks.0.bn2.bias (8,) (closest stem/bias (8,)): block_0_bn1/beta is taken",
        ),
        ("original0", "original2", "there is no gain stem.parametrizations.weight.original2"),
        ("gain =", "gains =", "original1 has gains; expected to, turn, shape, gain, keep, and quotes around a name"),
        ('"up.weight"', "up.weight", "up has weight; expected to, turn, shape, gain, keep, and quotes around a name"),
        ("[residual]", "[residual", "Expected ']'"),
        (
            "[residual]",
            "[residuals]",
            "[residuals] is no network of this run, which has generator, discriminator, resi",
        ),
        ('"up.weight"', '"upp.weight"', "; rules that fit no name: upp.weight; --init-map print"),
        (
            '"up.weight"',
            '"down.weight"',
            "1 tensors without a variable: up.weight (16, 4, 2, 2) (closest up/kernel (2, ",
        ),
        ('"up.weight" = {to = "up/kernel", turn = "IOHW->HWOI"}', '"up.weight" = ""', "0 tensors without a variable: "),
    ],
)
def test_a_wrong_map_is_one_line(asked, right, wrong, words):
    assert right in RULES
    with pytest.raises(UserError) as error:
        take(asked(RULES.replace(right, wrong), residual=RESIDUAL))
    assert words in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["int8", "complex64"])
def test_numbers_of_another_kind_are_no_weights(run, asked, tmp_path, kind):
    """Quantized weights need their scales, so their integers alone would train a network of noise."""
    taken = {each.path: each.numpy() for each in run.state.networks["generator"].variables}
    name, *_ = taken
    save_file(taken | {name: taken[name].astype(kind)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match=f"the tensor of {name} holds {kind}, and the variable float32; expected"):
        take(asked(generator=tmp_path / "x.safetensors"))


def test_halves_and_doubles_are_weights(run, asked, tmp_path):
    network = run.state.networks["generator"]
    for kind in ("float16", "float64", "bfloat16"):
        save_file({each.path: each.numpy().astype(kind) for each in network.variables}, tmp_path / "x.safetensors")
        before = network.get_weights()
        take(asked(generator=tmp_path / "x.safetensors"))
        for one, other in zip(before, network.get_weights(), strict=True):
            np.testing.assert_array_equal(one.astype(kind).astype("float32"), other)


def test_a_map_needs_weights(run):
    config = dataclasses.replace(run.config, init_map="print")
    with pytest.raises(UserError, match="--init-map print: name weights with --init-from NETWORK=FILE"):
        proposal(dataclasses.replace(run, config=config))


def test_a_variable_without_a_tensor_may_keep_its_value(run, asked):
    before = run.state.networks["residual"].get_layer("up").kernel.numpy()
    rules = RULES.replace('{to = "up/kernel", turn = "IOHW->HWOI"}', '""') + '"up/ker*" = {keep = true}'
    lines, _ = take(asked(rules, residual=RESIDUAL))
    assert lines[0].startswith("residual: 29 tensors taken")
    np.testing.assert_array_equal(run.state.networks["residual"].get_layer("up").kernel, before)


def own(folder, network, weights, rules):
    """The flags by which a run begins with copies of a file and of a map."""
    file, by = folder / f"{folder.name}.safetensors", folder / f"{folder.name}.toml"
    folder.mkdir()
    shutil.copy(weights, file)
    by.write_text(rules)
    return ["--init-from", f"{network}={file}", "--init-map", str(by)]


def pinned(flags):
    """What config.json has of them: each file with its SHA-256."""
    files = [each.rpartition("=")[2] for each in flags[1::2]]
    return [
        f"{each}#sha256={hashlib.sha256(Path(file).read_bytes()).hexdigest()}"
        for each, file in zip(flags[1::2], files, strict=True)
    ]


def configured(run_dir):
    """The settings of a run that say what it began with."""
    settings = json.loads((run_dir / "config.json").read_text())
    return [settings[name] for name in ("init_from", "init_map")]


@pytest.mark.long
def test_a_run_says_what_it_began_with_and_frozen_layers_keep_it_on_two_ranks_and_resumed(tmp_path, run, asked, capsys):
    rules = proposal(asked(generator=GENERATOR))
    whole_from, cut_from, two_from = (own(tmp_path / each, "generator", GENERATOR, rules) for each in "abc")
    frozen = ["--freeze", "generator/conv2d_transpose_1,generator/batch*"]
    assert train(tmp_path / "whole", *whole_from, *frozen, flags=FLAGS) == 0
    assert train(tmp_path / "cut", *cut_from, *frozen, "--max-steps", "2", flags=FLAGS) == 0
    wanted = pinned(cut_from)
    assert configured(tmp_path / "cut") == wanted
    shutil.rmtree(tmp_path / "b")  # a resume does not read its files again
    assert train(tmp_path / "cut", *cut_from, *frozen, flags=FLAGS) == 0
    assert configured(tmp_path / "cut") == wanted
    command = [sys.executable, "-m", "hvdgan.train", *FLAGS, *two_from, *frozen, "--run-dir", "two"]
    done = launched([*launcher(2), *command], tmp_path, forked=True)
    assert done.returncode == 0, done.stderr
    whole, cut, two = (tensors(tmp_path / each, 4) for each in ("whole", "cut", "two"))
    assert {name: each.tobytes() for name, each in whole.items()} == {
        name: each.tobytes() for name, each in cut.items()
    }
    take(asked(rules, generator=GENERATOR))
    for variable in run.state.networks["generator"].variables:
        is_frozen = variable.path.startswith(("batch", "conv2d_transpose_1/"))
        for name in (f"networks/generator/{variable.path}", f"ema/generator/{variable.path}"):
            found = [np.array_equal(each[name], variable) for each in (whole, two)]
            assert found == [is_frozen, is_frozen], name
    assert not [name for name in whole if name.startswith("optimizers/generator/batch")]
    digests = {"sha256": GENERATOR.read_bytes(), "sha256_of_map": rules.encode()}
    digests = {name: hashlib.sha256(each).hexdigest() for name, each in digests.items()}
    for folder, flags in (("whole", whole_from), ("cut", cut_from), ("two", two_from)):
        fact = {"file": flags[1].removeprefix("generator="), "map": flags[3], **digests}
        assert manifest(tmp_path / folder, 4)["initial"] == {"generator": fact}
        log = (tmp_path / folder / "log.txt").read_text()
        assert all(digest in log for digest in digests.values())
    settings = ["--config", str(tmp_path / "whole/config.json")]
    assert main([*settings, "--run-dir", str(tmp_path / "again"), "--max-steps", "1"]) == 0
    Path(whole_from[3]).write_text(f"{rules}# changed")
    assert main([*settings, "--run-dir", str(tmp_path / "other")]) == 2
    assert f"--init-map {pinned(whole_from)[1][:-64]}" in (error := capsys.readouterr().err) and "restore" in error
    assert train(tmp_path / "cut", flags=FLAGS) == 2
    assert "was made with freeze ['generator/conv2d_transpose_1'" in capsys.readouterr().err


@pytest.mark.long
def test_weights_of_lpips_are_those_of_a_frozen_network_in_training_and_afterwards(tmp_path, capsys):
    """No checkpoint holds them: a resume reads their file again, and so does a command that uses the run."""
    begin = own(tmp_path / "given", "lpips", HERE / "lpips.safetensors", (HERE / "lpips.toml").read_text())
    flags = [*FLAGS, "--ema-half-life", "10", "--checkpoint-every", "1"]
    flags[1:4] = "ported:Perceptual", "--image-size", "32"
    assert train(tmp_path / "run", *begin, "--max-steps", "1", flags=flags) == 0
    assert train(tmp_path / "run", *begin, "--max-steps", "2", flags=flags) == 0
    fact = manifest(tmp_path / "run", 2)["initial"]["lpips"]
    assert configured(tmp_path / "run")[0] == f"{begin[1]}#sha256={fact['sha256']}"
    kept = np.load(HERE / "lpips.npz")
    one, other = np.moveaxis(kept["inputs"], 2, -1).swapaxes(0, 1)
    np.testing.assert_allclose(
        load_trained(tmp_path / "run").state.frozen["lpips"]([one, other]), kept["outputs"], 1e-5
    )
    capsys.readouterr()
    assert train(tmp_path / "run", flags=flags) == 2
    assert "made with other values of the frozen network lpips; give the same --init-from, " in capsys.readouterr().err
    shutil.rmtree(tmp_path / "given")
    with pytest.raises(UserError, match="00002.safetensors: the run was given --init-map .* there is no such file"):
        load_trained(tmp_path / "run")


LAUNCHES = ["--gloo", *(["--mpi"] if HAS_MPI else []), "--elastic --interface lo --min-np 1"]


@pytest.mark.long
@pytest.mark.parametrize("how", LAUNCHES)
def test_all_ranks_begin_with_the_weights_whatever_starts_them(tmp_path, how):
    begin = own(tmp_path / "given", "residual", RESIDUAL, RULES)
    words = [sys.executable, *"-m hvdgan.launch -H localhost:1,127.0.0.1:1".split(), *how.split(), "train", *FLAGS]
    words += ["--freeze", "residual/block*", "--check-ranks-every", "1", "--run-dir", "two", *begin]
    done = launched(words, tmp_path)
    assert done.returncode == 0, done.stderr
    assert train(tmp_path / "one", *begin, "--freeze", "residual/block*", flags=FLAGS) == 0
    one, two = (tensors(tmp_path / each, 4) for each in ("one", "two"))
    for name in (name for name in one if name.startswith("networks/residual/")):
        np.testing.assert_allclose(two[name], one[name], atol=1e-4)
        assert np.array_equal(two[name], one[name]) or "block" not in name
    assert manifest(tmp_path / "two", 4)["ranks"] == 2 and manifest(tmp_path / "two", 4)["initial"]["residual"]


def test_an_update_changes_nothing_of_a_frozen_layer_whatever_its_calls_move():
    """BatchNorm and spectral normalisation in training mode move their statistics, and the latter its kernel."""
    run = tiny_run(ported.Normalised, freeze=("discriminator/block_*",))
    before = values_of(run)
    after = trained(run, 3)
    moved = {name.partition("/")[2] for name in changed(before, after) if name.startswith("networks/discriminator/")}
    assert moved == {f"discriminator/discriminator/head/{each}" for each in ("kernel", "bias")}
    assert all(each["changed"] and not each["strays"] for each in check_updates(run, data_of(run)))
    owned = owned_tensors(run.state, run.plan.stages[0].updates[0])
    assert not [name for name in owned if "block" in name] and any("head" in name for name in owned)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("discriminator/blok_*", "names no layer with weights; expected NETWORK/LAYER, of block_0, "),
        ("discriminator", "names no layer with weights; expected NETWORK/LAYER, of block_0, "),
        ("critic/*", "expected NETWORK/LAYER, of generator, discriminator"),
        ("discriminator/*", "leaves nothing of discriminator to train"),
    ],
)
def test_a_wrong_pattern_of_layers_is_refused(pattern, words):
    with pytest.raises(UserError) as error:
        tiny_run(ported.Normalised, freeze=(pattern,))
    assert f"--freeze {pattern}: " in str(error.value) and words in str(error.value)
