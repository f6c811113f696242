"""The most bytes of a graph that live at once, worked out by hand."""

import tensorflow as tf

from hvdgan.training.memory.liveness import Peak, peak_of

KILO = tf.TensorSpec((250,), tf.float32)  # 1,000 bytes


def peak(function, *specs, is_fixed=lambda tensor: False):
    graph = tf.function(function, autograph=False).get_concrete_function(*(specs or [KILO])).graph
    return peak_of(graph, is_fixed)


def test_arguments_variables_views_and_constants_are_not_counted():
    variable = tf.Variable(tf.zeros((250,)))
    assert peak(lambda x: tf.reshape(tf.identity(x), (25, 10))) == Peak()
    assert peak(lambda x: variable.read_value()) == Peak()


def test_a_result_takes_the_place_of_an_input_that_nobody_reads_again():
    # cumsum is not done in place, tanh is.
    assert peak(lambda x: tf.tanh(tf.tanh(tf.cumsum(x)))).total == 1000
    assert peak(lambda x: tf.cumsum(tf.cumsum(x))).total == 2000


def test_what_is_read_later_stays():
    def function(x):
        first = tf.cumsum(x)
        second = tf.cumsum(first)
        third = tf.cumsum(second)
        return first + third

    # first, second and third, when third is made
    assert peak(function).total == 3000


def test_operations_that_nothing_depends_on_do_not_run():
    def function(x):
        tf.concat([x, x, x, x], 0)
        return tf.cumsum(x)

    assert peak(function).total == 1000


def test_effects_run():
    variable = tf.Variable(tf.zeros((1000,)))

    def function(x):
        variable.assign(tf.concat([x, x, x, x], 0))
        return tf.cumsum(x)

    # The result is ready as early as what is assigned.
    assert peak(function).total == 5000


def test_branches_that_are_ready_at_the_same_time_take_turns():
    def function(x):
        sums = []
        for _ in range(2):
            y = x
            for _ in range(3):
                y = tf.cumsum(y)
            sums.append(tf.reduce_sum(y))
        return sums

    # One after the other they would take 2,000 bytes; the second begins when the first has made its first result.
    assert peak(function).total == 3000


def test_the_larger_branch_counts():
    def function(x):
        wide, narrow = (lambda: tf.reduce_sum(tf.tile(x, [5]))), (lambda: tf.reduce_sum(tf.tile(x, [2])))
        return tf.cond(x[0] > 0, wide, narrow)

    assert 5000 <= peak(function).total <= 5100


def test_a_round_of_a_loop_counts_once():
    def function(x):
        def body(number, total):
            return number + 1, total + tf.reduce_sum(tf.tile(x, [3]))

        return tf.while_loop(lambda number, _: number < 10, body, [tf.constant(0), tf.constant(0.0)])[1]

    assert 3000 <= peak(function).total <= 3100


def test_sizes_that_do_not_depend_on_the_batch_are_kept_apart():
    def function(x):
        return tf.cumsum(x), tf.cumsum(tf.tile(x, [2]))

    found = peak(function, is_fixed=lambda tensor: tuple(tensor.shape) == (250,))
    assert found.fixed == 1000 and found.scaled == 4000


def test_the_gradient_keeps_activations():
    def function(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for _ in range(5):
                y = tf.sin(tf.cumsum(y))
        return tape.gradient(y, x)

    # Five inputs of sines, the last sine, and a few gradients.
    assert 5000 <= peak(function).total <= 8000


def test_the_results_of_a_called_function_count_once():
    """Gradients of micro-batches and of --jit are such results."""

    @tf.function(autograph=False)
    def called(x):
        return tf.cumsum(x)

    assert peak(called).total == 1000
    # The first result is read when the second is made.
    assert peak(lambda x: called(called(x))).total == 2000


def test_an_argument_that_a_called_function_returns_is_counted_as_its_result():
    called = tf.function(lambda x: (tf.identity(x), tf.reduce_sum(x)), autograph=False)
    assert peak(lambda x: tf.cumsum(called(x)[0])).total == 2000
