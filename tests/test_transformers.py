"""Softmax attention is the paper's formula; the decoder is causal, and a module that a flow accepts."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, random_model, regression

from flowsim.flow.gradient_flow import gradient_flow
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import FunctionLoss
from flowsim.models import Decoder, SoftmaxAttention
from flowsim.tasks import Prompt

pytestmark = pytest.mark.slow


def softmax_attention(d, layers=1, seed=0, scale=1.0, rho=None):
    weights = scale * np.random.default_rng(seed).standard_normal((2, layers, d + 1, d + 1))
    return SoftmaxAttention(*weights, rho=rho)


def token_by_token(model, prompt):
    """zhang2023, section 3.2: token j moves by W^PV times the mean of all, weighted by exp(e_i^T W^KQ e_j / rho)."""
    tokens = [np.append(x, y) for x, y in zip(prompt.inputs, prompt.labels, strict=True)]
    tokens.append(np.append(prompt.query, 0.0))
    for W_PV, W_KQ in zip(np.asarray(model.W_PV), np.asarray(model.W_KQ), strict=True):
        moved = []
        for one in tokens:
            weights = [np.exp(other @ W_KQ @ one / model.rho) for other in tokens]
            mean = sum(weight * other for weight, other in zip(weights, tokens, strict=True)) / sum(weights)
            moved.append(one + W_PV @ mean)
        tokens = moved
    return tokens[-1][-1]


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(("d", "context_length"), [(1, 1), (2, 3), (3, 8)])
def test_softmax_attention_is_the_formula_token_by_token(d, context_length, layers):
    model = softmax_attention(d, layers, scale=0.4)
    prompt, _ = regression(d, context_length).sample(jax.random.key(1))
    np.testing.assert_allclose(model(prompt), token_by_token(model, prompt), rtol=1e-12)


def test_one_example_by_hand():
    # Scores of the query's column: 2 * 3 against the example, 2 * 2 against itself, over rho = 4; values: its label 5.
    model = SoftmaxAttention([[[0.0, 0.0], [0.0, 1.0]]], [[[1.0, 0.0], [0.0, 0.0]]], rho=4.0)
    prompt = Prompt(jnp.array([[3.0]]), jnp.array([5.0]), jnp.array([2.0]))
    np.testing.assert_allclose(model(prompt), 5 / (1 + np.exp(-0.5)), rtol=1e-14)
    assert SoftmaxAttention(np.zeros((1, 4, 4)), np.zeros((1, 4, 4))).rho == 2.0


def test_softmax_attention_does_not_see_the_order_of_the_examples():
    model = softmax_attention(2, 2, scale=0.5)
    prompt, _ = regression(2, 6).sample(jax.random.key(2))
    order = np.array([4, 0, 5, 2, 1, 3])
    turned = Prompt(prompt.inputs[order], prompt.labels[order], prompt.query)
    np.testing.assert_allclose(model(turned), model(prompt), rtol=1e-12)
    other = Prompt(prompt.inputs[order], prompt.labels, prompt.query)
    assert abs(model(other) - model(prompt)) > 1e-3


def test_small_keys_make_it_linear_attention_on_centred_tokens():
    # softmax(z) = (1 + z - mean z)/(N + 1) + O(z^2): linear attention over rho (N + 1)/N, less what the mean takes.
    linear = random_model(2, 3)
    prompt, _ = regression(2, 5).sample(jax.random.key(3))
    tokens = np.vstack([np.column_stack([prompt.inputs, prompt.labels]), np.append(prompt.query, 0.0)])
    values = tokens @ np.append(linear.u12, linear.u_minus1)
    scores = tokens @ np.vstack([linear.U11, linear.u21]) @ prompt.query
    rest, defects = np.mean(values) * np.mean(scores) * 6, []
    for small in (1e-3, 1e-4):
        W_PV, W_KQ = np.zeros((2, 1, 3, 3))
        W_PV[0, 2], W_KQ[0, :, :2] = np.append(linear.u12, linear.u_minus1), np.vstack([linear.U11, linear.u21])
        model = SoftmaxAttention(W_PV, small * W_KQ, rho=6.0)
        slope = 36 * (model(prompt) - np.mean(values)) / small
        defects.append(abs(slope - (5 * linear(prompt) - rest)))
    assert 1e-9 < defects[1] < defects[0] < 0.1
    np.testing.assert_allclose(defects[0] / defects[1], 10, rtol=0.02)


@pytest.mark.parametrize(
    ("arguments", "rho", "message"),
    [
        ((np.ones((2, 3, 3)), np.ones((1, 3, 3))), None, r"W_KQ must be an array of shape \(2, 3, 3\)"),
        ((np.ones((1, 3, 2)), np.ones((1, 3, 2))), None, "W_PV must be square matrices"),
        ((np.ones((1, 1, 1)), np.ones((1, 1, 1))), None, "W_PV must be of shape"),
        ((np.ones((3, 3)), np.ones((3, 3))), None, "W_PV must be an array of shape"),
        ((np.ones((1, 3, 3)), np.nan * np.ones((1, 3, 3))), None, "W_KQ must be finite"),
        ((np.ones((1, 3, 3)), np.ones((1, 3, 3))), 0.0, "rho must be positive"),
    ],
)
def test_bad_weights_of_softmax_attention_are_refused(arguments, rho, message):
    with pytest.raises(ValueError, match=message):
        SoftmaxAttention(*arguments, rho=rho)


def decoder(longest=6, layers=2, seed=0):
    return Decoder(2, embedding=8, layers=layers, heads=2, longest=longest, key=jax.random.key(seed))


PROMPT, _ = regression(2, 5).sample(jax.random.key(4))


def test_later_tokens_change_no_earlier_prediction():
    predictions = eqx.filter_jit(Decoder.predictions)
    model = decoder()
    before = predictions(model, PROMPT)
    assert before.shape == (6,) and before.dtype == jnp.float64
    for i in range(5):
        # The label of example i + 1 is seen from the next token on, its inputs by its own prediction too.
        labels = predictions(model, Prompt(PROMPT.inputs, PROMPT.labels.at[i].add(1.0), PROMPT.query))
        inputs = predictions(model, Prompt(PROMPT.inputs.at[i].add(1.0), PROMPT.labels, PROMPT.query))
        assert_close(labels[: i + 1], before[: i + 1])
        assert_close(inputs[:i], before[:i])
        assert np.all(np.abs(labels[i + 1 :] - before[i + 1 :]) > 1e-6)
        assert np.all(np.abs(inputs[i:] - before[i:]) > 1e-6)


def test_a_prompt_cut_short_has_the_same_predictions():
    model = decoder()
    short = Prompt(PROMPT.inputs[:3], PROMPT.labels[:3], PROMPT.inputs[3])
    assert_close(model.predictions(short), model.predictions(PROMPT)[:4], rtol=1e-12)
    assert_close(model(short), model.predictions(PROMPT)[3], rtol=1e-12)


def test_the_decoder_sees_the_order_of_the_examples():
    order = np.array([4, 0, 2, 1, 3])
    turned = Prompt(PROMPT.inputs[order], PROMPT.labels[order], PROMPT.query)
    assert abs(decoder()(turned) - decoder()(PROMPT)) > 1e-6


def test_a_decoder_has_the_layers_it_was_asked_for():
    size = lambda model: sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_array)))
    e = 8
    block = 4 * (e * e + e) + (4 * e * e + 4 * e) + (4 * e * e + e) + 4 * e
    assert size(decoder(layers=1)) == (2 * e + e) + 13 * e + block + 2 * e + (e + 1)
    assert size(decoder(layers=3)) - size(decoder(layers=1)) == 2 * block
    assert float(jnp.std(decoder(longest=500).positions.weight)) == pytest.approx(0.02, rel=0.02)


def test_positions_beyond_a_prompt_have_no_gradient():
    gradient = eqx.filter_grad(lambda model: jnp.sum(model.predictions(PROMPT) ** 2))(decoder())
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    rows = np.max(np.abs(gradient.positions.weight), axis=1)
    assert np.all(rows[:11] > 0) and np.all(rows[11:] == 0)


def squared_error(model):
    return (model(PROMPT) - 1.0) ** 2


MODELS = {"decoder": lambda: decoder(layers=1), "softmax": lambda: softmax_attention(2, scale=0.5)}


@pytest.mark.parametrize("name", MODELS)
def test_a_flow_accepts_it_and_its_trajectory_can_be_loaded(name, tmp_path):
    model = MODELS[name]()
    trajectory = gradient_flow(FunctionLoss(squared_error), model, t1=0.05, solver="explicit", points_per_decade=2)
    assert trajectory.loss[-1] < trajectory.loss[0]
    assert trajectory.certificates.energy_defect < 1e-6
    np.testing.assert_allclose(squared_error(trajectory.end), trajectory.loss[-1], rtol=1e-12)
    trajectory.save(tmp_path / "trajectory.npz")
    like = None if isinstance(model, SoftmaxAttention) else model
    loaded = Trajectory.load(tmp_path / "trajectory.npz", like).end
    assert loaded(PROMPT) == trajectory.end(PROMPT)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"dimension": 0}, "dimension must be a whole number"),
        ({"layers": -1}, "layers must be a whole number"),
        ({"heads": 3}, "embedding must be a multiple of heads = 3, but it is 8"),
        ({"longest": 0}, "longest must be a whole number"),
    ],
)
def test_bad_sizes_of_a_decoder_are_refused(changed, message):
    sizes = {"dimension": 2, "embedding": 8, "layers": 1, "heads": 2, "longest": 3} | changed
    with pytest.raises(ValueError, match=message):
        Decoder(sizes.pop("dimension"), **sizes, key=jax.random.key(0))


def test_prompts_that_a_decoder_has_no_room_for_are_refused():
    with pytest.raises(ValueError, match="prompt must be of at most longest = 4 examples, but it has 5"):
        decoder(longest=4)(PROMPT)
    with pytest.raises(ValueError, match="prompt must be of dimension 2, as the decoder, but its inputs have 3"):
        decoder()(regression(3, 4).sample(jax.random.key(0))[0])
