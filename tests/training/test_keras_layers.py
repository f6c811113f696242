"""Layers of Keras train as in Keras' own loop, or are refused in one line."""

import pytest
import tensorflow as tf
from safetensors.numpy import load_file

from building import tiny_run
from hvdgan.cli.errors import UserError
from keras_parts import Critic, Dropping
from launching import train


def state(run_dir):
    """The tensors of the latest checkpoint."""
    checkpoints = run_dir / "checkpoints"
    return load_file(checkpoints / (checkpoints / "latest").read_text().strip() / "state.safetensors")


def test_recurrent_layers_without_dropout_train_and_resume_with_the_same_bits(tmp_path):
    arguments = "--recipe keras_parts:Recurrent --image-size 8 --global-batch-size 16 --checkpoint-every 3".split()
    train(tmp_path, *arguments, "--run-dir", "whole")
    train(tmp_path, *arguments, "--run-dir", "parts", "--max-steps", "3")
    assert "resuming at step 3 of 6" in train(tmp_path, *arguments, "--run-dir", "parts").stderr
    whole, parts = state(tmp_path / "whole"), state(tmp_path / "parts")
    assert whole.keys() == parts.keys()
    assert not [name for name in whole if whole[name].tobytes() != parts[name].tobytes()]


def test_a_recurrent_layer_with_dropout_is_refused():
    with pytest.raises(UserError, match=r"update judge_critic .*: network critic draws its own random numbers"):
        tiny_run(Dropping)


class Dilating(Critic):
    """A penalty through an operation that TensorFlow differentiates once, as it does cuDNN's recurrent layers."""

    shape = (8, 8, 1)

    def judge(self, name, nets, batch):
        images = self.samples(batch)
        with tf.GradientTape() as tape:
            tape.watch(images)
            scores = nets.critic(tf.nn.dilation2d(images, tf.zeros((3, 3, 1)), [1] * 4, "SAME", "NHWC", [1] * 4))
        return tf.reduce_mean(tape.gradient(scores, images) ** 2) + tf.reduce_mean(scores), {}


def test_an_operation_without_a_second_gradient_is_refused_with_what_to_write():
    with pytest.raises(UserError, match=r"stage judge, update judge_critic: its gradient .* no entry for: Dilation2D"):
        tiny_run(Dilating)
