"""What Keras documents, each in a network of a few lines: layers, optimizers, regularizers, constraints and losses.

A case is named as Keras names it; one with arguments in its name is a further case of the same class.
"""

import dataclasses
import inspect
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras import constraints, layers, losses, ops, optimizers, regularizers

VECTOR, SEQUENCE, PICTURE, VOLUME = (8,), (8, 4), (6, 6, 3), (4, 4, 4, 1)
GROUPS = {
    "layers": layers,
    "optimizers": optimizers,
    "schedules": optimizers.schedules,
    "regularizers": regularizers,
    "constraints": constraints,
    "losses": losses,
}
"""modules of Keras whose classes are cases, by their names in the table"""


@dataclasses.dataclass(frozen=True)
class Case:
    """One class of Keras in use.

    inner: function from a tensor (B, *shape) to the output of the layer, any number of tensors.
    shape: shape of a sample before the layer.
    dense: function that makes arguments of the last Dense layer of both networks.
    optimizer: function that makes the optimizer.
    loss: function of (labels (B,), logits (B, 10)) that replaces the loss of a GAN; None: it stays.
    """

    inner: Callable[[Any], Any] = lambda x: x
    shape: tuple[int, ...] = VECTOR
    dense: Callable[[], dict[str, Any]] = dict
    optimizer: Callable[[], Any] = lambda: optimizers.SGD(0.05)
    loss: Callable[[Any, Any], Any] | None = None


class Scale(layers.Layer):
    """A layer of one's own, with a weight."""

    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


class Wrapped(layers.Wrapper):
    """A wrapper of one's own."""

    def call(self, x):
        return 2.0 * self.layer(x)


class WithVariable(layers.Layer):
    """A layer with a variable of TensorFlow, which Keras does not see."""

    def build(self, shape):
        self.factor = tf.Variable(tf.ones((shape[-1],)), name="factor")

    def call(self, x):
        return x * self.factor


class OwnNorm(layers.BatchNormalization):
    """A subclass of BatchNorm."""

    def call(self, x, training=None, mask=None):
        return 2.0 * super().call(x, training=training, mask=mask)


class Words(layers.Layer):
    """Whole numbers as texts."""

    def call(self, x):
        return tf.strings.as_string(x)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, "string")


class OwnConstraint(constraints.Constraint):
    """A constraint of one's own."""

    def __call__(self, w):
        return ops.clip(w, -0.3, 0.3)


class OwnRegularizer(regularizers.Regularizer):
    """A regularizer of one's own."""

    def __call__(self, x):
        return 0.1 * ops.mean(ops.abs(x))


class OwnLoss(losses.Loss):
    """A loss of one's own."""

    def call(self, y_true, y_pred):
        return ops.mean((y_true - y_pred) ** 4, axis=-1)


class OwnOptimizer(optimizers.Optimizer):
    """An optimizer of one's own, with a slot."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.assign(total, 0.5 * total + gradient)
        self.assign_sub(variable, learning_rate * total)


def _numbers(x):
    """Whole numbers from 0 to 7, of numbers from -1 to 1."""
    return ops.cast(ops.clip(4.0 * x + 4.0, 0.0, 7.0), "int32")


def _beside(x, y):
    """A path that carries no gradient, beside one that does."""
    return [x, ops.cast(y, "float32")]


def _own(name, *given):
    """A layer of pictures from -1 to 1, in one of one's own: Keras cannot put Equalization itself into a model."""
    return Wrapped(getattr(layers, name)(*given, value_range=(-1, 1)))


def _layer(make, shape=VECTOR):
    return Case(lambda x: make()(x), shape)


def _merged(kind):
    return Case(lambda x: kind()([x, layers.Dense(8)(x)]))


def _attention(kind):
    return Case(lambda x: kind()([x, layers.Dense(4)(x)]), SEQUENCE)


def _of_numbers(make):
    return Case(lambda x: _beside(x, make()(_numbers(x))))


def _of_words(make):
    return Case(lambda x: _beside(x, make()(Words()(_numbers(x[:, :1])))))


def _cell(make):
    return _layer(lambda: layers.RNN(make()), SEQUENCE)


def _each(names, make, shape):
    """Cases of one form: `make` gets the class."""
    return {name: _layer(lambda name=name: make(getattr(layers, name)), shape) for name in names.split()}


_LAYERS = {
    "Activation": _layer(lambda: layers.Activation("softplus")),
    "ActivityRegularization": _layer(lambda: layers.ActivityRegularization(l2=0.01)),
    **{
        f"Adaptive{kind}Pooling{n}D": _layer(
            lambda kind=kind, n=n: getattr(layers, f"Adaptive{kind}Pooling{n}D")(2), (SEQUENCE, PICTURE, VOLUME)[n - 1]
        )
        for kind in ("Average", "Max")
        for n in (1, 2, 3)
    },
    **{
        name: _merged(getattr(layers, name))
        for name in "Add Average Concatenate Maximum Minimum Multiply Subtract".split()
    },
    "Dot": _merged(lambda: layers.Dot(1)),
    "AdditiveAttention": _attention(layers.AdditiveAttention),
    "Attention": _attention(layers.Attention),
    "MultiHeadAttention": Case(lambda x: layers.MultiHeadAttention(2, 3)(x, x), SEQUENCE),
    "MultiHeadAttention(dropout=0.5)": Case(lambda x: layers.MultiHeadAttention(2, 3, dropout=0.5)(x, x), SEQUENCE),
    "GroupQueryAttention": Case(lambda x: layers.GroupQueryAttention(2, 2, 1)(x, x), SEQUENCE),
    **_each("AlphaDropout Dropout GaussianDropout", lambda kind: kind(0.5), VECTOR),
    "GaussianNoise": _layer(lambda: layers.GaussianNoise(0.1)),
    **{
        f"SpatialDropout{n}D": _layer(
            lambda n=n: getattr(layers, f"SpatialDropout{n}D")(0.5), (SEQUENCE, PICTURE, VOLUME)[n - 1]
        )
        for n in (1, 2, 3)
    },
    **{
        f"{kind}Pooling{n}D": _layer(
            lambda kind=kind, n=n: getattr(layers, f"{kind}Pooling{n}D")(*(() if "Global" in kind else (2,))),
            (SEQUENCE, PICTURE, VOLUME)[n - 1],
        )
        for kind in ("Average", "Max", "GlobalAverage", "GlobalMax")
        for n in (1, 2, 3)
    },
    "BatchNormalization": _layer(layers.BatchNormalization, PICTURE),
    "BatchNormalization(synchronized=True)": _layer(lambda: layers.BatchNormalization(synchronized=True), PICTURE),
    "BatchNormalization(renorm=True)": _layer(lambda: layers.BatchNormalization(renorm=True), PICTURE),
    "Bidirectional": _layer(lambda: layers.Bidirectional(layers.LSTM(3)), SEQUENCE),
    **{
        f"Conv{n}D{kind}": _layer(
            lambda kind=kind, n=n: getattr(layers, f"Conv{n}D{kind}")(2, 3), (SEQUENCE, PICTURE, VOLUME)[n - 1]
        )
        for kind in ("", "Transpose")
        for n in (1, 2, 3)
    },
    **{
        f"ConvLSTM{n}D": _layer(lambda n=n: getattr(layers, f"ConvLSTM{n}D")(2, 2), (2, *[3] * n, 2)) for n in (1, 2, 3)
    },
    **{
        f"{kind}Conv{n}D": _layer(
            lambda kind=kind, n=n: getattr(layers, f"{kind}Conv{n}D")(*((3,) if kind == "Depthwise" else (2, 3))),
            (SEQUENCE, PICTURE)[n - 1],
        )
        for kind in ("Depthwise", "Separable")
        for n in (1, 2)
    },
    **{
        f"{kind}{n}D": _layer(
            lambda kind=kind, n=n: getattr(layers, f"{kind}{n}D")(), (SEQUENCE, PICTURE, VOLUME)[n - 1]
        )
        for kind in ("Cropping", "UpSampling", "ZeroPadding")
        for n in (1, 2, 3)
    },
    "CategoryEncoding": _of_numbers(lambda: layers.CategoryEncoding(8)),
    "Dense": _layer(lambda: layers.Dense(4, "gelu")),
    "Discretization": _of_numbers(lambda: layers.Discretization([1.5, 4.5])),
    **_each(
        "ELU Flatten Identity LayerNormalization LeakyReLU PReLU ReLU RMSNormalization UnitNormalization",
        lambda kind: kind(),
        SEQUENCE,
    ),
    "EinsumDense": _layer(lambda: layers.EinsumDense("ab,bc->ac", 4)),
    "Embedding": _of_numbers(lambda: layers.Embedding(8, 3)),
    "ReversibleEmbedding": _of_numbers(lambda: layers.ReversibleEmbedding(8, 3)),
    **_each("GRU LSTM SimpleRNN", lambda kind: kind(3), SEQUENCE),
    "LSTM(dropout=0.5)": _layer(lambda: layers.LSTM(3, dropout=0.5), SEQUENCE),
    "GRUCell": _cell(lambda: layers.GRUCell(3)),
    "LSTMCell": _cell(lambda: layers.LSTMCell(3)),
    "SimpleRNNCell": _cell(lambda: layers.SimpleRNNCell(3)),
    "StackedRNNCells": _cell(lambda: layers.StackedRNNCells([layers.LSTMCell(3), layers.GRUCell(2)])),
    "RNN": _layer(lambda: layers.RNN(layers.GRUCell(3), return_sequences=True), SEQUENCE),
    "GroupNormalization": _layer(lambda: layers.GroupNormalization(2), SEQUENCE),
    "HashedCrossing": Case(
        lambda x: _beside(x, layers.HashedCrossing(5)([_numbers(x[:, 0]), _numbers(x[:, 1])])[:, None])
    ),
    "Hashing": _of_numbers(lambda: layers.Hashing(5)),
    "IntegerLookup": _of_numbers(lambda: layers.IntegerLookup(vocabulary=[1, 2, 3])),
    "StringLookup": _of_words(lambda: layers.StringLookup(vocabulary=["1", "2", "3"])),
    "TextVectorization": _of_words(
        lambda: layers.TextVectorization(vocabulary=["1", "2", "3"], output_sequence_length=2)
    ),
    "InputLayer": Case(lambda x: keras.Sequential([layers.InputLayer((8,)), layers.Dense(3)])(x)),
    "Lambda": _layer(lambda: layers.Lambda(lambda x: x**2)),
    "Layer": _layer(Scale),
    "Wrapper": _layer(lambda: Wrapped(layers.Dense(3))),
    "Masking": Case(lambda x: layers.LSTM(3)(layers.Masking()(ops.relu(x))), SEQUENCE),
    "MelSpectrogram": Case(
        lambda x: layers.MelSpectrogram(
            16, 8, sampling_rate=64, num_mel_bins=4, min_freq=1, max_freq=32, power_to_db=False
        )(x),
        (64,),
        optimizer=lambda: optimizers.SGD(0.005),
    ),
    "STFTSpectrogram": _layer(lambda: layers.STFTSpectrogram("magnitude", 16, 8, fft_length=16), (64, 1)),
    "Normalization": _layer(lambda: layers.Normalization(mean=0.5, variance=2.0)),
    "Permute": _layer(lambda: layers.Permute((2, 1)), SEQUENCE),
    "Pipeline": _layer(lambda: layers.Pipeline([layers.Rescaling(2.0), layers.CenterCrop(4, 4)]), PICTURE),
    "RepeatVector": _layer(lambda: layers.RepeatVector(3)),
    "Rescaling": _layer(lambda: layers.Rescaling(2.0)),
    "Reshape": _layer(lambda: layers.Reshape((4, 8)), SEQUENCE),
    "Resizing": _layer(lambda: layers.Resizing(4, 4), PICTURE),
    "CenterCrop": _layer(lambda: layers.CenterCrop(4, 4), PICTURE),
    "Softmax": _layer(layers.Softmax),
    "SpectralNormalization": _layer(lambda: layers.SpectralNormalization(layers.Dense(4))),
    "TimeDistributed": _layer(lambda: layers.TimeDistributed(layers.Dense(3)), SEQUENCE),
    **_each("AugMix AutoContrast RandAugment", lambda kind: kind(value_range=(-1, 1)), PICTURE),
    **_each("CutMix MixUp RandomFlip", lambda kind: kind(), PICTURE),
    **_each(
        "RandomBrightness RandomColorDegeneration RandomContrast RandomInvert RandomSharpness",
        lambda kind: kind(0.5, value_range=(-1, 1)),
        PICTURE,
    ),
    **{
        name: Case(lambda x, name=name, given=given: _beside(x, _own(name, *given)(x)), PICTURE)
        for name, *given in (
            ("ContrastLimitedAdaptiveHistogramEqualization",),
            ("Equalization",),
            ("RandomHue", 0.5),
            ("RandomPosterization", 4),
            ("RandomSaturation", 0.5),
            ("Solarization", 0.5),
        )
    },
    "RandomColorJitter": _layer(lambda: layers.RandomColorJitter((-1, 1), 0.5), PICTURE),
    "RandomCrop": _layer(lambda: layers.RandomCrop(4, 4), PICTURE),
    "RandomElasticTransform": _layer(lambda: layers.RandomElasticTransform(0.5), PICTURE),
    "RandomErasing": _layer(lambda: layers.RandomErasing(0.5, value_range=(-1, 1)), PICTURE),
    "RandomGaussianBlur": _layer(lambda: layers.RandomGaussianBlur(value_range=(-1, 1)), PICTURE),
    "RandomGrayscale": _layer(lambda: layers.RandomGrayscale(0.5), PICTURE),
    "RandomPerspective": _layer(lambda: layers.RandomPerspective(0.5), PICTURE),
    "RandomRotation": _layer(lambda: layers.RandomRotation(0.5), PICTURE),
    "RandomShear": _layer(lambda: layers.RandomShear(0.5, 0.5), PICTURE),
    "RandomTranslation": _layer(lambda: layers.RandomTranslation(0.5, 0.5), PICTURE),
    "RandomZoom": _layer(lambda: layers.RandomZoom(0.5), PICTURE),
    "TFSMLayer": _layer(lambda: layers.TFSMLayer(_saved_model(), call_endpoint="serve")),
    "a layer with dtype='float64'": _layer(lambda: layers.Dense(4, dtype="float64")),
    "a layer with dtype='bfloat16'": _layer(lambda: layers.Dense(4, dtype="bfloat16")),
    "a frozen layer (trainable=False)": _layer(lambda: layers.Dense(4, trainable=False)),
    "a subclass of BatchNormalization": _layer(lambda: OwnNorm(synchronized=True), PICTURE),
    "a tf.Variable in a layer": _layer(WithVariable),
    "LSTM(stateful=True)": Case(lambda x: layers.LSTM(3, stateful=True)(x), SEQUENCE),
}
NOT_TRIED = {
    "layers": {
        "FlaxLayer": "not tried: needs JAX",
        "JaxLayer": "not tried: needs JAX",
        "TorchModuleWrapper": "not tried: needs PyTorch as the backend of Keras",
        "MaxNumBoundingBoxes": "not tried: takes boxes, not numbers",
    },
}
"""classes that are no case, by group, with the reason for the table"""
PARTS = {"InputSpec", "OptimizerMap"}
"""classes that are arguments of others"""


def _saved_model():
    """A folder with a network as a SavedModel."""
    folder = f"{tempfile.mkdtemp()}/network"
    keras.Sequential([keras.Input((8,)), layers.Dense(3)]).export(folder, verbose=False)
    return folder


def _optimizer(make):
    return Case(optimizer=make)


_OPTIMIZERS = {
    **{
        name: _optimizer(lambda name=name: getattr(optimizers, name)(0.01))
        for name in "Adadelta Adafactor Adagrad Adam AdamW Adamax Ftrl Lamb Lion Muon Nadam RMSprop SGD "
        "ScheduleFreeAdamW".split()
    },
    "Optimizer": _optimizer(lambda: OwnOptimizer(0.01)),
    "Adam(amsgrad=True)": _optimizer(lambda: optimizers.Adam(0.01, amsgrad=True)),
    "Adam(clipnorm=0.1)": _optimizer(lambda: optimizers.Adam(0.01, clipnorm=0.1)),
    "Adam(clipvalue=0.01)": _optimizer(lambda: optimizers.Adam(0.01, clipvalue=0.01)),
    "Adam(global_clipnorm=0.1)": _optimizer(lambda: optimizers.Adam(0.01, global_clipnorm=0.1)),
    "Adam(weight_decay=0.1)": _optimizer(lambda: optimizers.Adam(0.01, weight_decay=0.1)),
    "Adam(gradient_accumulation_steps=2)": _optimizer(lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2)),
    "Adam(use_ema=True)": _optimizer(lambda: optimizers.Adam(0.01, use_ema=True)),
    "Adam(loss_scale_factor=128)": _optimizer(lambda: optimizers.Adam(0.01, loss_scale_factor=128)),
    "RMSprop(momentum=0.5, centered=True)": _optimizer(lambda: optimizers.RMSprop(0.01, momentum=0.5, centered=True)),
    "SGD(momentum=0.9, nesterov=True)": _optimizer(lambda: optimizers.SGD(0.01, 0.9, nesterov=True)),
    "LossScaleOptimizer": _optimizer(lambda: optimizers.LossScaleOptimizer(optimizers.SGD(0.01))),
    "MultiOptimizer": _optimizer(lambda: optimizers.MultiOptimizer(lambda _: optimizers.SGD(0.01))),
}


class OwnSchedule(optimizers.schedules.LearningRateSchedule):
    """A schedule of one's own."""

    def __call__(self, step):
        return 0.05 / (1.0 + ops.cast(step, "float32"))

    def get_config(self):
        return {}


def _schedule(*arguments, name):
    return Case(optimizer=lambda: optimizers.SGD(getattr(optimizers.schedules, name)(*arguments)))


_SCHEDULES = {
    "CosineDecay": _schedule(0.05, 10, name="CosineDecay"),
    "CosineDecayRestarts": _schedule(0.05, 4, name="CosineDecayRestarts"),
    "ExponentialDecay": _schedule(0.05, 4, 0.5, name="ExponentialDecay"),
    "InverseTimeDecay": _schedule(0.05, 4, 0.5, name="InverseTimeDecay"),
    "PiecewiseConstantDecay": _schedule([3, 8], [0.05, 0.02, 0.01], name="PiecewiseConstantDecay"),
    "PolynomialDecay": _schedule(0.05, 10, name="PolynomialDecay"),
    "LearningRateSchedule": Case(optimizer=lambda: optimizers.SGD(OwnSchedule())),
}


def _dense(argument, make):
    return Case(dense=lambda: {argument: make()})


_REGULARIZERS = {
    "L1": _dense("kernel_regularizer", lambda: regularizers.L1(0.05)),
    "L2": _dense("kernel_regularizer", lambda: regularizers.L2(0.05)),
    "L1L2": _dense("bias_regularizer", lambda: regularizers.L1L2(0.05, 0.05)),
    "OrthogonalRegularizer": _dense("kernel_regularizer", lambda: regularizers.OrthogonalRegularizer(0.05)),
    "Regularizer": _dense("kernel_regularizer", OwnRegularizer),
    "L2 as activity_regularizer": _dense("activity_regularizer", lambda: regularizers.L2(0.05)),
}
_CONSTRAINTS = {
    "MaxNorm": _dense("kernel_constraint", lambda: constraints.MaxNorm(0.5)),
    "MinMaxNorm": _dense("kernel_constraint", lambda: constraints.MinMaxNorm(0.2, 0.5)),
    "NonNeg": _dense("kernel_constraint", constraints.NonNeg),
    "UnitNorm": _dense("kernel_constraint", constraints.UnitNorm),
    "Constraint": _dense("kernel_constraint", OwnConstraint),
}


def _of_classes(make):
    """A loss of probabilities against classes as vectors."""
    return Case(loss=lambda labels, logits: make()(tf.one_hot(labels, 10), tf.nn.softmax(logits)))


def _of_labels(make):
    """A loss of probabilities against classes as numbers."""
    return Case(loss=lambda labels, logits: make()(labels, tf.nn.softmax(logits)))


_LOSSES = {
    **{
        name: _of_classes(lambda name=name: getattr(losses, name)())
        for name in "BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy "
        "CategoricalHinge CosineSimilarity Dice Hinge Huber KLDivergence LogCosh MeanAbsoluteError "
        "MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson SquaredHinge Tversky".split()
    },
    "CategoricalGeneralizedCrossEntropy": _of_labels(lambda: losses.CategoricalGeneralizedCrossEntropy()),
    "SparseCategoricalCrossentropy": _of_labels(lambda: losses.SparseCategoricalCrossentropy()),
    "CTC": Case(loss=lambda labels, x: losses.CTC()(labels[:, None] % 4 + 1, tf.reshape(x, (-1, 2, 5)))),
    "Circle": Case(loss=lambda labels, x: losses.Circle(gamma=1.0)(labels, tf.math.l2_normalize(x, 1))),
    "Loss": _of_classes(OwnLoss),
    "MeanSquaredError(reduction='sum')": _of_classes(lambda: losses.MeanSquaredError(reduction="sum")),
}
CASES: dict[str, dict[str, Case]] = {
    "layers": _LAYERS,
    "optimizers": _OPTIMIZERS,
    "schedules": _SCHEDULES,
    "regularizers": _REGULARIZERS,
    "constraints": _CONSTRAINTS,
    "losses": _LOSSES,
}
"""all cases by group and name"""


def documented(group: str) -> Iterator[set[str]]:
    """The names of each class that a module of Keras has; a class may have several."""
    found: dict[type, set[str]] = {}
    for name, value in vars(GROUPS[group]).items():
        if inspect.isclass(value):
            found.setdefault(value, set()).add(name)
    yield from found.values()
