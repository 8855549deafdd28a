"""Training reaches what is known to be optimal, repeats itself exactly, and its curriculum shows what it says."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from flowsim.flow.training import Curriculum, position_loss, train
from flowsim.models import Decoder, LinearAttention
from flowsim.tasks import LinearRegression, Prompt, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma

pytestmark = pytest.mark.slow

FIXED = LinearRegression(np.eye(2), 3)
RANDOM = RandomCovarianceRegression(DiagonalLaw(Gamma(2.0, np.ones(2))), 3)
KEY = jax.random.key(0)
LATE = {"dimensions": (1, 1), "lengths": (1, 1), "every": 10**6}


class OneStep(eqx.Module):
    """One step of gradient descent of size s from zero, at every position: s <sum_{k < i} y_k x_k, x_i>/(i - 1)."""

    size: Float[Array, ""]

    def predictions(self, prompt: Prompt) -> Float[Array, " positions"]:
        sums = jnp.cumsum(prompt.labels[:, None] * prompt.inputs, axis=0)
        means = sums / jnp.arange(1.0, 1 + prompt.labels.size)[:, None]
        queries = jnp.concatenate([prompt.inputs[1:], prompt.query[None, :]])
        return jnp.append(0.0, self.size * jnp.sum(means * queries, axis=1))


def optimal_size(variances, lengths):
    """Of `OneStep` on N(0, diag(variances)): sum_i E<b_i, x>y over sum_i E<b_i, x>^2, one term a number of examples."""
    S = np.diag(variances)
    signal = np.trace(S @ S)
    power = [np.trace(S @ ((1 + 1 / m) * S @ S + np.trace(S) * S / m)) for m in lengths]
    return len(lengths) * signal / np.sum(power)


def test_one_weight_is_trained_to_its_optimum():
    # Over eight keys the weight scatters around the optimum with standard deviation 0.007.
    task = LinearRegression(np.diag([0.5, 1.0]), 3)
    model, losses = train(OneStep(jnp.asarray(0.0)), task, steps=1500, batch=256, learning_rate=2e-3, key=KEY)
    assert float(model.size) == pytest.approx(optimal_size([0.5, 1.0], [1, 2, 3]), abs=0.03)
    np.testing.assert_allclose(np.mean(losses[:5]), 1.5, rtol=0.1)  # predicting zero: tr Lambda


def test_the_optimum_of_prompts_cut_short_is_another():
    # Only the prediction from one example counts, and one coordinate: 1/(1 + 1 + 1); it scatters by 0.01 over keys.
    curriculum = Curriculum(dimensions=(1, 1), lengths=(2, 1), every=10**6)
    model, _ = train(
        OneStep(jnp.asarray(0.0)), FIXED, steps=1500, batch=256, learning_rate=2e-3, key=KEY, curriculum=curriculum
    )
    assert optimal_size([1.0], [1]) == pytest.approx(1 / 3)
    assert float(model.size) == pytest.approx(1 / 3, abs=0.04)


@pytest.mark.long
@pytest.mark.parametrize("task", [FIXED, RANDOM], ids=["fixed", "random"])
def test_a_step_is_adam_on_the_prompts_of_its_key(task):
    steps, rate, batch = 3, 0.1, 4
    model, losses = train(OneStep(jnp.asarray(0.3)), task, steps=steps, batch=batch, learning_rate=rate, key=KEY)
    size, first, second, expected = 0.3, 0.0, 0.0, []
    for step in range(steps):
        keys = jax.random.split(jax.random.fold_in(KEY, step), batch)
        drawn = [task.sample(key) for key in keys]
        value = lambda s, drawn=drawn: sum(
            sum((OneStep(s).predictions(prompt) - jnp.append(prompt.labels, label)) ** 2) / 4 for prompt, label in drawn
        )
        expected.append(value(size) / batch)
        gradient = jax.grad(value)(jnp.asarray(size)) / batch
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        corrected = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        size = size - rate * corrected[0] / (np.sqrt(corrected[1]) + 1e-8)
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    np.testing.assert_allclose(model.size, size, rtol=1e-12)


def test_runs_repeat_exactly_and_chunks_leave_no_trace():
    short = {"batch": 2, "learning_rate": 1e-2}
    start = OneStep(jnp.asarray(0.3))
    model, losses = train(start, FIXED, steps=250, key=KEY, **short)
    again, same = train(start, FIXED, steps=250, key=KEY, **short)
    assert float(model.size) == float(again.size) and np.array_equal(losses, same)
    assert losses.shape == (250,) and np.unique(losses).size == 250
    np.testing.assert_array_equal(train(start, FIXED, steps=130, key=KEY, **short)[1], losses[:130])
    assert not np.array_equal(train(start, FIXED, steps=250, key=jax.random.key(1), **short)[1], losses)


def test_stages_of_a_curriculum():
    curriculum = Curriculum(dimensions=(5, 1), lengths=(11, 2), every=2000)
    stages = [tuple(map(int, curriculum.stage(jnp.asarray(step)))) for step in (0, 1999, 2000, 30_000)]
    assert stages == [(5, 11), (5, 11), (6, 13), (20, 41)]


@pytest.mark.parametrize("task", [FIXED, RANDOM, LinearRegression(np.eye(2) + 0.5, 3, label_noise=0.1)])
def test_coordinates_beyond_the_dimension_are_zero_for_the_labels_too(task):
    whole, label = task.sample(KEY)
    for dimension in (2, 7):
        same, one = task.sample(KEY, dimension)
        assert np.array_equal(same.inputs, whole.inputs) and one == label
    cut, label = task.sample(KEY, 1)
    np.testing.assert_array_equal(cut.inputs[:, 0], whole.inputs[:, 0])
    assert not np.any(cut.inputs[:, 1]) and not cut.query[1]
    if not getattr(task, "shifts", ()):
        np.testing.assert_allclose(cut.labels / cut.inputs[:, 0], label / cut.query[0], rtol=1e-12)


def test_positions_beyond_the_length_do_not_count():
    prompt, label = FIXED.sample(KEY)
    model = OneStep(jnp.asarray(0.7))
    errors = (model.predictions(prompt) - jnp.append(prompt.labels, label)) ** 2
    for length in (1, 3, 4, 9):
        loss = position_loss(model.predictions, prompt, label, jnp.asarray(length))
        np.testing.assert_allclose(loss, jnp.mean(errors[:length]))
    np.testing.assert_allclose(position_loss(model.predictions, prompt, label), jnp.mean(errors))


def test_a_decoder_learns_within_tens_of_steps():
    # One weight for all prompts, so that there is nothing to be inferred from the context.
    decoder = Decoder(1, embedding=8, layers=1, heads=1, longest=4, key=KEY)
    task = LinearRegression(np.eye(1), 4, weight=[1.0])
    curriculum = Curriculum(dimensions=(1, 1), lengths=(2, 3), every=20)
    trained, losses = train(decoder, task, steps=80, batch=64, learning_rate=1e-2, key=KEY, curriculum=curriculum)
    assert losses[0] > 0.6
    assert np.mean(losses[-10:]) < 0.1
    assert isinstance(trained, Decoder)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"steps": 0}, "steps must be a whole number"),
        ({"batch": 0}, "batch must be a whole number"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"task": LinearRegression(np.eye(2), np.inf)}, "context_length must be a known finite number"),
        (
            {
                "model": LinearAttention(np.eye(2), 1.0),
                "curriculum": Curriculum(dimensions=(1, 1), lengths=(2, 1), every=10),
            },
            "model must be one with predictions.*, such as a Decoder, with a curriculum",
        ),
    ],
)
def test_bad_input_is_one_line(changed, message):
    given = {"model": OneStep(jnp.asarray(0.0)), "task": FIXED, "steps": 2, "key": KEY} | changed
    with pytest.raises(ValueError, match=message):
        train(given.pop("model"), given.pop("task"), **given)


@pytest.mark.parametrize("changed", [{"dimensions": (0, 1)}, {"lengths": (2, 0)}, {"every": 0}])
def test_bad_stages_are_one_line(changed):
    with pytest.raises(ValueError, match=rf"{next(iter(changed))}.* must be a whole number of at least 1, but it is 0"):
        Curriculum(**LATE | changed)


def test_a_model_of_the_query_alone_is_trained_on_it():
    """One step from (U11, u_{-1}) goes by the learning rate against the sign of the gradient on the drawn prompts."""
    start = LinearAttention(0.1 * np.eye(2), 0.1)
    model, losses = train(start, FIXED, steps=1, batch=16, learning_rate=0.01, key=KEY)
    prompts, labels = jax.vmap(FIXED.sample)(jax.random.split(jax.random.fold_in(KEY, 0), 16))
    mean = lambda model: jnp.mean((jax.vmap(model)(prompts) - labels) ** 2)
    value, slope = jax.value_and_grad(mean)(start)
    assert float(losses[0]) == pytest.approx(float(value), rel=1e-12)
    np.testing.assert_allclose(model.U11, start.U11 - 0.01 * np.sign(slope.U11), rtol=0, atol=1e-6)
