"""What Keras documents, each in a network of a few lines: layers, optimizers, regularizers, constraints and losses.

A case is named as Keras names it; one with arguments in its name is a further case of the same class. Cases are
text between semicolons: an expression, with a name before `:=` if that is not the name of its class.
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


def _own(layer):
    """A layer of pictures in one of one's own: Keras cannot put Equalization itself into a model."""
    return Wrapped(layer)


def _saved_model():
    """A folder with a network as a SavedModel."""
    folder = f"{tempfile.mkdtemp()}/network"
    keras.Sequential([keras.Input((8,)), layers.Dense(3)]).export(folder, verbose=False)
    return folder


# In each of VECTOR, SEQUENCE and so on: a layer, or after `x:` what becomes of a tensor x. {n} is 1, 2 and 3, and
# its shapes are SEQUENCE, PICTURE and VOLUME; {m} is 1 and 2.
_LAYERS = {
    VECTOR: """
        Activation("softplus"); ActivityRegularization(l2=0.01); Add := x: Add()([x, Dense(8)(x)]);
        Average := x: Average()([x, Dense(8)(x)]); Concatenate := x: Concatenate()([x, Dense(8)(x)]);
        Maximum := x: Maximum()([x, Dense(8)(x)]); Minimum := x: Minimum()([x, Dense(8)(x)]);
        Multiply := x: Multiply()([x, Dense(8)(x)]); Subtract := x: Subtract()([x, Dense(8)(x)]);
        Dot := x: Dot(1)([x, Dense(8)(x)]); AlphaDropout(0.5); Dropout(0.5); GaussianDropout(0.5); GaussianNoise(0.1);
        CategoryEncoding := x: _beside(x, CategoryEncoding(8)(_numbers(x))); Dense(4, "gelu");
        Discretization := x: _beside(x, Discretization([1.5, 4.5])(_numbers(x))); EinsumDense("ab,bc->ac", 4);
        Embedding := x: _beside(x, Embedding(8, 3)(_numbers(x)));
        ReversibleEmbedding := x: _beside(x, ReversibleEmbedding(8, 3)(_numbers(x)));
        HashedCrossing := x: _beside(x, HashedCrossing(5)([_numbers(x[:, 0]), _numbers(x[:, 1])])[:, None]);
        Hashing := x: _beside(x, Hashing(5)(_numbers(x)));
        IntegerLookup := x: _beside(x, IntegerLookup(vocabulary=[1, 2, 3])(_numbers(x)));
        StringLookup := x: _beside(x, StringLookup(vocabulary=["1", "2", "3"])(Words()(_numbers(x[:, :1]))));
        TextVectorization := x: _beside(x, _vectorization()(Words()(_numbers(x[:, :1]))));
        InputLayer := x: keras.Sequential([InputLayer((8,)), Dense(3)])(x); Lambda(lambda x: x**2); Layer := Scale();
        Wrapper := Wrapped(Dense(3)); Normalization(mean=0.5, variance=2.0); RepeatVector(3); Rescaling(2.0);
        Softmax(); SpectralNormalization(Dense(4)); TFSMLayer(_saved_model(), call_endpoint="serve");
        a layer with dtype='float64' := Dense(4, dtype="float64");
        a layer with dtype='bfloat16' := Dense(4, dtype="bfloat16");
        a frozen layer (trainable=False) := Dense(4, trainable=False); a tf.Variable in a layer := WithVariable()
    """,
    SEQUENCE: """
        AdditiveAttention := x: AdditiveAttention()([x, Dense(4)(x)]); Attention := x: Attention()([x, Dense(4)(x)]);
        MultiHeadAttention := x: MultiHeadAttention(2, 3)(x, x);
        MultiHeadAttention(dropout=0.5) := x: MultiHeadAttention(2, 3, dropout=0.5)(x, x);
        GroupQueryAttention := x: GroupQueryAttention(2, 2, 1)(x, x); Bidirectional(LSTM(3)); ELU(); Flatten();
        Identity(); LayerNormalization(); LeakyReLU(); PReLU(); ReLU(); RMSNormalization(); UnitNormalization();
        GRU(3); LSTM(3); SimpleRNN(3); LSTM(dropout=0.5) := LSTM(3, dropout=0.5);
        LSTM(stateful=True) := LSTM(3, stateful=True); GRUCell := RNN(GRUCell(3)); LSTMCell := RNN(LSTMCell(3));
        SimpleRNNCell := RNN(SimpleRNNCell(3)); StackedRNNCells := RNN(StackedRNNCells([LSTMCell(3), GRUCell(2)]));
        RNN(GRUCell(3), return_sequences=True); GroupNormalization(2); Masking := x: LSTM(3)(Masking()(ops.relu(x)));
        Permute((2, 1)); Reshape((4, 8)); TimeDistributed(Dense(3))
    """,
    PICTURE: """
        BatchNormalization(); BatchNormalization(synchronized=True) := BatchNormalization(synchronized=True);
        BatchNormalization(renorm=True) := BatchNormalization(renorm=True);
        a subclass of BatchNormalization := OwnNorm(synchronized=True); Pipeline([Rescaling(2.0), CenterCrop(4, 4)]);
        Resizing(4, 4); CenterCrop(4, 4); AugMix(value_range=(-1, 1)); AutoContrast(value_range=(-1, 1));
        RandAugment(value_range=(-1, 1)); CutMix(); MixUp(); RandomFlip(); RandomBrightness(0.5, value_range=(-1, 1));
        RandomColorDegeneration(0.5, value_range=(-1, 1)); RandomContrast(0.5, value_range=(-1, 1));
        RandomInvert(0.5, value_range=(-1, 1)); RandomSharpness(0.5, value_range=(-1, 1));
        ContrastLimitedAdaptiveHistogramEqualization := x: _beside(x, _own(_equalization(value_range=(-1, 1)))(x));
        Equalization := x: _beside(x, _own(Equalization(value_range=(-1, 1)))(x));
        RandomHue := x: _beside(x, _own(RandomHue(0.5, value_range=(-1, 1)))(x));
        RandomPosterization := x: _beside(x, _own(RandomPosterization(4, value_range=(-1, 1)))(x));
        RandomSaturation := x: _beside(x, _own(RandomSaturation(0.5, value_range=(-1, 1)))(x));
        Solarization := x: _beside(x, _own(Solarization(0.5, value_range=(-1, 1)))(x));
        RandomColorJitter((-1, 1), 0.5); RandomCrop(4, 4); RandomElasticTransform(0.5);
        RandomErasing(0.5, value_range=(-1, 1)); RandomGaussianBlur(value_range=(-1, 1)); RandomGrayscale(0.5);
        RandomPerspective(0.5); RandomRotation(0.5); RandomShear(0.5, 0.5); RandomTranslation(0.5, 0.5);
        RandomZoom(0.5)
    """,
    (64, 1): 'STFTSpectrogram("magnitude", 16, 8, fft_length=16)',
    "{n}": """
        AdaptiveAveragePooling{n}D(2); AdaptiveMaxPooling{n}D(2); AveragePooling{n}D(2); MaxPooling{n}D(2);
        GlobalAveragePooling{n}D(); GlobalMaxPooling{n}D(); SpatialDropout{n}D(0.5); Conv{n}D(2, 3);
        Conv{n}DTranspose(2, 3); Cropping{n}D(); UpSampling{n}D(); ZeroPadding{n}D()
    """,
    "{m}": """
        DepthwiseConv{m}D(3); SeparableConv{m}D(2, 3)
    """,
    (2, 3, 2): "ConvLSTM1D(2, 2)",
    (2, 3, 3, 2): "ConvLSTM2D(2, 2)",
    (2, 3, 3, 3, 2): "ConvLSTM3D(2, 2)",
}


def _lines(text):
    """The cases of a text: name and expression."""
    for case in filter(None, map(str.strip, text.split(";"))):
        name, _, expression = case.rpartition(" := ")
        yield name or expression.partition("(")[0], expression


def _evaluated(expression):
    """The value of an expression, anew for each network."""
    return eval(expression, {**vars(layers), **globals()})


def _inner(expression):
    if expression.startswith("x: "):
        return lambda x: _evaluated(f"lambda {expression}")(x)
    return lambda x: _evaluated(expression)(x)


def _of_layers():
    """The cases of layers."""
    for shape, text in _LAYERS.items():
        shapes = {shape: text}
        if isinstance(shape, str):
            each = enumerate((SEQUENCE, PICTURE, VOLUME)[: 3 if shape == "{n}" else 2], start=1)
            shapes = {shape_of: text.replace(shape, str(number)) for number, shape_of in each}
        for one, lines in shapes.items():
            yield from ((name, Case(_inner(expression), one)) for name, expression in _lines(lines))
    mel = "MelSpectrogram(16, 8, sampling_rate=64, num_mel_bins=4, min_freq=1, max_freq=32, power_to_db=False)"
    yield "MelSpectrogram", Case(_inner(mel), (64,), optimizer=lambda: optimizers.SGD(0.005))


def _vectorization():
    return layers.TextVectorization(vocabulary=["1", "2", "3"], output_sequence_length=2)


def _equalization(**settings):
    return layers.ContrastLimitedAdaptiveHistogramEqualization(**settings)


NOT_TRIED = {
    "layers": {
        "FlaxLayer": "not tried: needs JAX",
        "JaxLayer": "not tried: needs JAX",
        "TorchModuleWrapper": "not tried: needs PyTorch as the backend of Keras",
        "MaxNumBoundingBoxes": "not tried: takes boxes, not numbers",
    }
}
"""classes that are no case, by group, with the reason for the table"""
PARTS = {"InputSpec", "OptimizerMap"}
"""classes that are arguments of others"""


class OwnSchedule(optimizers.schedules.LearningRateSchedule):
    """A schedule of one's own."""

    def __call__(self, step):
        return 0.05 / (1.0 + ops.cast(step, "float32"))

    def get_config(self):
        return {}


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
    MultiOptimizer(lambda _: optimizers.SGD(0.01))
"""
_SCHEDULES = """
    CosineDecay(0.05, 10); CosineDecayRestarts(0.05, 4); ExponentialDecay(0.05, 4, 0.5);
    InverseTimeDecay(0.05, 4, 0.5); PiecewiseConstantDecay([3, 8], [0.05, 0.02, 0.01]); PolynomialDecay(0.05, 10);
    LearningRateSchedule := OwnSchedule()
"""
# Arguments of a Dense layer.
_REGULARIZERS = """
    L1 := kernel_regularizer=regularizers.L1(0.05); L2 := kernel_regularizer=regularizers.L2(0.05);
    L1L2 := bias_regularizer=regularizers.L1L2(0.05, 0.05);
    OrthogonalRegularizer := kernel_regularizer=regularizers.OrthogonalRegularizer(0.05);
    Regularizer := kernel_regularizer=OwnRegularizer();
    L2 as activity_regularizer := activity_regularizer=regularizers.L2(0.05)
"""
_CONSTRAINTS = """
    MaxNorm := kernel_constraint=constraints.MaxNorm(0.5);
    MinMaxNorm := kernel_constraint=constraints.MinMaxNorm(0.2, 0.5);
    NonNeg := kernel_constraint=constraints.NonNeg(); UnitNorm := kernel_constraint=constraints.UnitNorm();
    Constraint := kernel_constraint=OwnConstraint()
"""


def _optimizer(expression):
    return Case(optimizer=lambda: eval(expression, {**globals(), **vars(optimizers)}))


def _schedule(expression):
    return Case(optimizer=lambda: optimizers.SGD(eval(expression, {**globals(), **vars(optimizers.schedules)})))


def _dense(expression):
    return Case(dense=lambda: _evaluated(f"dict({expression})"))


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
    "layers": dict(_of_layers()),
    "optimizers": {name: _optimizer(expression) for name, expression in _lines(_OPTIMIZERS)},
    "schedules": {name: _schedule(expression) for name, expression in _lines(_SCHEDULES)},
    "regularizers": {name: _dense(expression) for name, expression in _lines(_REGULARIZERS)},
    "constraints": {name: _dense(expression) for name, expression in _lines(_CONSTRAINTS)},
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
