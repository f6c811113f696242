"""What Keras documents, each in a network of a few lines: layers, optimizers, regularizers, constraints and losses.

A case is named as Keras names it; one with arguments in its name is a further case of the same class. Cases are
text between semicolons: an expression, with a name before `:=` if that is not the name of its class.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras import constraints, layers, losses, optimizers, regularizers

VECTOR, SEQUENCE, PICTURE, VOLUME = (8,), (8, 4), (6, 6, 3), (4, 4, 4, 1)
SHAPES = {"{n}": (SEQUENCE, PICTURE, VOLUME), "{m}": (SEQUENCE, PICTURE)}
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


class Wrapped(layers.Wrapper):
    def call(self, x):
        return 2.0 * self.layer(x)


class OwnNorm(layers.BatchNormalization):
    def call(self, x, training=None, mask=None):
        return 2.0 * super().call(x, training=training, mask=mask)


class OwnOptimizer(optimizers.Optimizer):
    """With a slot."""

    def build(self, variables):
        if not self.built:
            super().build(variables)
            self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.assign(total, 0.5 * total + gradient)
        self.assign_sub(variable, learning_rate * total)


_WAYS = {
    "of one": lambda layer, x: layer(x),
    "of two": lambda layer, x: layer([x, layers.Dense(x.shape[-1])(x)]),
    # Paths that carry no gradient, beside one that does; Keras cannot put the wrapped layers themselves into a model.
    "of numbers": lambda layer, x: [x, keras.ops.cast(layer(keras.ops.cast(3.9 * x + 4.0, "int32")), "float32")],
    "wrapped": lambda layer, x: [x, keras.ops.cast(Wrapped(layer)(x), "float32")],
}
"""what becomes of a layer and a tensor x; another word: the expression itself is what becomes of x"""
# {n} is 1, 2 and 3, and its shapes are SEQUENCE, PICTURE and VOLUME; {m} is 1 and 2.
_LAYERS = {
    ("of one", VECTOR): """
        Activation("softplus"); ActivityRegularization(l2=0.01); AlphaDropout(0.5); Dropout(0.5); GaussianDropout(0.5);
        GaussianNoise(0.1); Dense(4, "gelu"); EinsumDense("ab,bc->ac", 4); Lambda(lambda x: x**2);
        Wrapper := Wrapped(Dense(3)); Normalization(mean=0.5, variance=2.0); RepeatVector(3); Rescaling(2.0); Softmax();
        SpectralNormalization(Dense(4)); a layer with dtype='float64' := Dense(4, dtype="float64");
        a frozen layer (trainable=False) := Dense(4, trainable=False)
    """,
    ("of two", VECTOR): "Add(); Average(); Concatenate(); Maximum(); Minimum(); Multiply(); Subtract(); Dot(1)",
    ("of numbers", VECTOR): """
        CategoryEncoding(8); Discretization([1.5, 4.5]); Embedding(8, 3); ReversibleEmbedding(8, 3); Hashing(5);
        IntegerLookup(vocabulary=[1, 2, 3])
    """,
    ("x", VECTOR): "InputLayer := keras.Sequential([InputLayer((8,)), Dense(3)])(x)",
    ("of one", SEQUENCE): """
        Bidirectional(LSTM(3)); ELU(); Flatten(); Identity(); LayerNormalization(); LeakyReLU(); PReLU(); ReLU();
        RMSNormalization(); UnitNormalization(); GRU(3); LSTM(3); SimpleRNN(3);
        LSTM(dropout=0.5) := LSTM(3, dropout=0.5); LSTM(stateful=True) := LSTM(3, stateful=True);
        GRUCell := RNN(GRUCell(3)); LSTMCell := RNN(LSTMCell(3)); SimpleRNNCell := RNN(SimpleRNNCell(3));
        StackedRNNCells := RNN(StackedRNNCells([LSTMCell(3), GRUCell(2)])); RNN(GRUCell(3), return_sequences=True);
        GroupNormalization(2); Permute((2, 1)); Reshape((4, 8)); TimeDistributed(Dense(3))
    """,
    ("of two", SEQUENCE): "AdditiveAttention(); Attention()",
    ("x", SEQUENCE): """
        MultiHeadAttention := MultiHeadAttention(2, 3)(x, x); GroupQueryAttention := GroupQueryAttention(2, 2, 1)(x, x);
        MultiHeadAttention(dropout=0.5) := MultiHeadAttention(2, 3, dropout=0.5)(x, x);
        Masking := LSTM(3)(Masking()(keras.ops.relu(x)))
    """,
    ("of one", PICTURE): """
        BatchNormalization(); BatchNormalization(synchronized=True) := BatchNormalization(synchronized=True);
        BatchNormalization(renorm=True) := BatchNormalization(renorm=True);
        a subclass of BatchNormalization := OwnNorm(synchronized=True); Pipeline([Rescaling(2.0), CenterCrop(4, 4)]);
        Resizing(4, 4); CenterCrop(4, 4); AugMix(value_range=(-1, 1)); AutoContrast(value_range=(-1, 1));
        RandAugment(value_range=(-1, 1)); CutMix(); MixUp(); RandomFlip(); RandomBrightness(0.5, value_range=(-1, 1));
        RandomColorDegeneration(0.5, value_range=(-1, 1)); RandomContrast(0.5, value_range=(-1, 1));
        RandomInvert(0.5, value_range=(-1, 1)); RandomSharpness(0.5, value_range=(-1, 1));
        RandomColorJitter((-1, 1), 0.5); RandomCrop(4, 4); RandomElasticTransform(0.5);
        RandomErasing(0.5, value_range=(-1, 1)); RandomGaussianBlur(value_range=(-1, 1)); RandomGrayscale(0.5);
        RandomPerspective(0.5); RandomRotation(0.5); RandomShear(0.5, 0.5); RandomTranslation(0.5, 0.5);
        RandomZoom(0.5)
    """,
    ("wrapped", PICTURE): """
        ContrastLimitedAdaptiveHistogramEqualization(value_range=(-1, 1)); Equalization(value_range=(-1, 1));
        RandomHue(0.5, value_range=(-1, 1)); RandomPosterization(4, value_range=(-1, 1));
        RandomSaturation(0.5, value_range=(-1, 1)); Solarization(0.5, value_range=(-1, 1))
    """,
    ("of one", (64, 1)): 'STFTSpectrogram("magnitude", 16, 8, fft_length=16)',
    ("of one", "{n}"): """
        AdaptiveAveragePooling{n}D(2); AdaptiveMaxPooling{n}D(2); AveragePooling{n}D(2); MaxPooling{n}D(2);
        GlobalAveragePooling{n}D(); GlobalMaxPooling{n}D(); SpatialDropout{n}D(0.5); Conv{n}D(2, 3);
        Conv{n}DTranspose(2, 3); Cropping{n}D(); UpSampling{n}D(); ZeroPadding{n}D()
    """,
    ("of one", "{m}"): "DepthwiseConv{m}D(3); SeparableConv{m}D(2, 3)",
    ("of one", (6, 4)): "Conv1D(groups=2) := Conv1D(2, 3, groups=2)",
    ("of one", (6, 6, 4)): "Conv2D(groups=2) := Conv2D(2, 3, groups=2)",
    ("of one", (4, 4, 4, 4)): "Conv3D(groups=2) := Conv3D(2, 3, groups=2)",
    ("of one", (2, 3, 2)): "ConvLSTM1D(2, 2)",
    ("of one", (2, 3, 3, 2)): "ConvLSTM2D(2, 2)",
    ("of one", (2, 3, 3, 3, 2)): "ConvLSTM3D(2, 2)",
}
_OPTIMIZERS = """
    Adadelta(0.01); Adafactor(0.01); Adagrad(0.01); Adam(0.01); AdamW(0.01); Adamax(0.01); Ftrl(0.01); Lamb(0.01);
    Lion(0.01); Muon(0.01); Nadam(0.01); RMSprop(0.01); SGD(0.01); ScheduleFreeAdamW(0.01);
    Optimizer := OwnOptimizer(0.01); Adam(amsgrad=True) := Adam(0.01, amsgrad=True);
    Adam(clipnorm=0.1) := Adam(0.01, clipnorm=0.1); Adam(clipvalue=0.01) := Adam(0.01, clipvalue=0.01);
    Adam(global_clipnorm=0.1) := Adam(0.01, global_clipnorm=0.1);
    Adam(weight_decay=0.1) := Adam(0.01, weight_decay=0.1);
    Adam(gradient_accumulation_steps=2) := Adam(0.01, gradient_accumulation_steps=2);
    Adam(use_ema=True) := Adam(0.01, use_ema=True); Adam(loss_scale_factor=128) := Adam(0.01, loss_scale_factor=128);
    RMSprop(momentum=0.5, centered=True) := RMSprop(0.01, momentum=0.5, centered=True);
    SGD(momentum=0.9, nesterov=True) := SGD(0.01, 0.9, nesterov=True); LossScaleOptimizer(SGD(0.01));
    MultiOptimizer(lambda _: SGD(0.01))
"""
_SCHEDULES = """
    CosineDecay(0.05, 10); CosineDecayRestarts(0.05, 4); ExponentialDecay(0.05, 4, 0.5);
    InverseTimeDecay(0.05, 4, 0.5); PiecewiseConstantDecay([3, 8], [0.05, 0.02, 0.01]); PolynomialDecay(0.05, 10)
"""
# Arguments of a Dense layer.
_REGULARIZERS = """
    L1 := kernel_regularizer=L1(0.05); L2 := kernel_regularizer=L2(0.05); L1L2 := bias_regularizer=L1L2(0.05, 0.05);
    OrthogonalRegularizer := kernel_regularizer=OrthogonalRegularizer(0.05);
    L2 as activity_regularizer := activity_regularizer=L2(0.05)
"""
_CONSTRAINTS = """
    MaxNorm := kernel_constraint=MaxNorm(0.5); MinMaxNorm := kernel_constraint=MinMaxNorm(0.2, 0.5);
    NonNeg := kernel_constraint=NonNeg(); UnitNorm := kernel_constraint=UnitNorm()
"""
NOT_TRIED = {
    "layers": {
        "FlaxLayer": "not tried: needs JAX",
        "JaxLayer": "not tried: needs JAX",
        "TorchModuleWrapper": "not tried: needs PyTorch as the backend of Keras",
        "MaxNumBoundingBoxes": "not tried: takes boxes, not numbers",
        **dict.fromkeys(("StringLookup", "TextVectorization", "HashedCrossing"), "not tried: takes words"),
        "TFSMLayer": "not tried: takes a SavedModel",
    }
}
"""classes that are no case, by group, with the reason for the table"""
PARTS = {"InputSpec", "OptimizerMap", "Layer", "LearningRateSchedule", "Regularizer", "Constraint", "Loss"}
"""classes that are arguments of others, or that others inherit from"""


def _lines(text):
    """The cases of a text: name and expression."""
    for case in filter(None, map(str.strip, text.split(";"))):
        name, _, expression = case.rpartition(" := ")
        yield name or expression.partition("(")[0], expression


def _made(group, expression, **more):
    """The value of an expression, anew for each network, in which a group's names need no module."""
    return eval(expression, {**vars(GROUPS[group]), **globals(), **more})


def _layer(way, expression):
    if way in _WAYS:
        return lambda x: _WAYS[way](_made("layers", expression), x)
    return lambda x: _made("layers", expression, x=x)


def _of_layers():
    """The cases of layers."""
    for (way, shape), text in _LAYERS.items():
        for number, one in enumerate(SHAPES.get(shape, (shape,)), start=1):
            for name, expression in _lines(text.replace(shape, str(number)) if shape in SHAPES else text):
                yield name, Case(_layer(way, expression), one)
    mel = "MelSpectrogram(16, 8, sampling_rate=64, num_mel_bins=4, min_freq=1, max_freq=32, power_to_db=False)"
    yield "MelSpectrogram", Case(_layer("of one", mel), (64,), optimizer=lambda: optimizers.SGD(0.005))


def _of_classes(loss):
    """A loss of probabilities against classes as vectors."""
    return Case(loss=lambda labels, logits: loss(tf.one_hot(labels, 10), tf.nn.softmax(logits)))


def _of_labels(loss):
    """A loss of probabilities against classes as numbers."""
    return Case(loss=lambda labels, logits: loss(labels, tf.nn.softmax(logits)))


_WEIGHTED = "MeanSquaredError(reduction='mean_with_sample_weight')"
_LOSSES = {
    **{
        name: _of_classes(getattr(losses, name)())
        for name in "BinaryCrossentropy BinaryFocalCrossentropy CategoricalCrossentropy CategoricalFocalCrossentropy "
        "CategoricalHinge CosineSimilarity Dice Hinge Huber KLDivergence LogCosh MeanAbsoluteError "
        "MeanAbsolutePercentageError MeanSquaredError MeanSquaredLogarithmicError Poisson SquaredHinge Tversky".split()
    },
    "CategoricalGeneralizedCrossEntropy": _of_labels(losses.CategoricalGeneralizedCrossEntropy()),
    "SparseCategoricalCrossentropy": _of_labels(losses.SparseCategoricalCrossentropy()),
    "CTC": Case(loss=lambda labels, x: losses.CTC()(labels[:, None] % 4 + 1, tf.reshape(x, (-1, 2, 5)))),
    "Circle": Case(loss=lambda labels, x: losses.Circle(gamma=1.0)(labels, tf.math.l2_normalize(x, 1))),
    "MeanSquaredError(reduction='sum')": _of_classes(losses.MeanSquaredError(reduction="sum")),
    _WEIGHTED: Case(
        loss=lambda labels, logits: losses.MeanSquaredError(reduction="mean_with_sample_weight")(
            tf.one_hot(labels, 10), 10 * tf.nn.softmax(logits), tf.cast(labels < 3, tf.float32)
        )
    ),
}


def _cases(group, text, make, form="{}"):
    """The cases of a text, each made of a function that makes the value of its expression."""
    return {name: make(lambda words=words: _made(group, form.format(words))) for name, words in _lines(text)}


CASES: dict[str, dict[str, Case]] = {
    "layers": dict(_of_layers()),
    "optimizers": _cases("optimizers", _OPTIMIZERS, lambda make: Case(optimizer=make)),
    "schedules": _cases("schedules", _SCHEDULES, lambda make: Case(optimizer=lambda: optimizers.SGD(make()))),
    "regularizers": _cases("regularizers", _REGULARIZERS, lambda make: Case(dense=make), "dict({})"),
    "constraints": _cases("constraints", _CONSTRAINTS, lambda make: Case(dense=make), "dict({})"),
    "losses": _LOSSES,
}
"""all cases by group and name"""


def documented(group: str) -> list[set[str]]:
    """The names of each class that a module of Keras has; a class may have several."""
    found: dict[type, set[str]] = {}
    for name, value in vars(GROUPS[group]).items():
        if inspect.isclass(value):
            found.setdefault(value, set()).add(name)
    return [*found.values()]
