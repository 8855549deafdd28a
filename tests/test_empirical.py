"""The empirical loss is the mean over its prompts, with an exact minimum and an exact error on new prompts."""

import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance

import flowsim
from flowsim import EmpiricalLoss, Judgement, LinearRegression, TokenHeads, draw_prompts
from flowsim.losses import MinimumKind
from flowsim.losses.closed_form import is_closed_form

D, N = 2, 5
NOISY = LinearRegression(covariance(D, 1), N, label_noise=0.4)
SHIFTED = LinearRegression(
    covariance(D, 1),
    N,
    label_noise=0.4,
    query_covariance=covariance(D, 2),
    prior_mean=[0.5, -1.0],
    prior_covariance=covariance(D, 3),
)


def theta(seed=0, d=D):
    return jnp.asarray(np.random.default_rng(seed).standard_normal((d + 1, d)))


def predict(Theta, prompt):
    """The prediction of the layer as it is defined, token by token."""
    return TokenHeads(jnp.eye(1, D + 1, D), Theta[None])(prompt)


@pytest.mark.parametrize("ridge", [0.0, 0.7])
@pytest.mark.parametrize(
    ("tasks", "prompts"), [(2, 2), *(pytest.param(*of, marks=pytest.mark.slow) for of in ((3, 2), (20, 3)))]
)
def test_it_is_the_mean_over_the_prompts_that_are_drawn(tasks, prompts, ridge):
    loss, Theta = EmpiricalLoss(SHIFTED, tasks, prompts, seed=3, ridge=ridge), theta()
    finite = flowsim.FiniteLoss(*draw_prompts(SHIFTED, tasks, prompts, seed=3), predict=predict)
    direct = lambda Theta: finite(Theta) + ridge * jnp.sum(Theta**2) / 2
    np.testing.assert_allclose(loss(Theta), direct(Theta), rtol=1e-12)
    np.testing.assert_allclose(loss.gradient(Theta), jax.grad(direct)(Theta), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(loss.hessian, jax.hessian(direct)(Theta).reshape(6, 6), atol=1e-12)
    np.testing.assert_allclose(loss.minimum, direct(loss.least_model()), rtol=1e-11, atol=1e-25)
    assert np.max(np.abs(jax.grad(direct)(loss.least_model()))) < 1e-12
    assert loss.minimum_kind is MinimumKind.EXACT
    assert is_closed_form(loss)
    assert repr(loss) == "<EmpiricalLoss, d = 2, N = 5; minimum exact>"


def exact_least(H, y, ridge):
    """The solution of least norm of the given floats, in rational numbers."""
    rational = lambda numbers: flint.fmpq_mat([[flint.fmpq(*float(x).as_integer_ratio()) for x in r] for r in numbers])
    A, b = rational(H), rational(y[:, None])
    m, p = H.shape
    if ridge or m >= p:
        penalty = flint.fmpq(*(float(ridge)).as_integer_ratio()) * m
        square = A.transpose() * A + flint.fmpq_mat(p, p, [penalty * int(i == j) for i in range(p) for j in range(p)])
        return square.solve(A.transpose() * b)
    return A.transpose() * (A * A.transpose()).solve(b)


@pytest.mark.parametrize(("count", "ridge"), [(4, 0.0), (6, 0.0), (7, 0.0), (50, 0.0), (4, 1e-6), (50, 0.3)])
def test_the_least_model_is_that_of_rational_arithmetic_within_its_bound(count, ridge):
    for seed in range(4):
        loss = EmpiricalLoss(NOISY, count, 1, seed=seed, ridge=ridge)
        prompts, labels = draw_prompts(NOISY, count, 1, seed=seed)
        tokens = jnp.concatenate([prompts.inputs, prompts.labels[:, :, None]], axis=2)
        seen = jnp.einsum("jn,jnr->jr", prompts.labels, tokens) / N
        H = np.asarray(seen[:, :, None] * prompts.query[:, None, :]).reshape(count, 6)
        exact = exact_least(H, np.asarray(labels), ridge).entries()
        found = [flint.fmpq(*float(x).as_integer_ratio()) for x in loss.least.ravel()]
        error = sum(float(one - other) ** 2 for one, other in zip(found, exact, strict=True)) ** 0.5
        size = float(jnp.linalg.norm(loss.least))
        assert error <= float(loss.rounding) < 1e-8 * size, (seed, error, loss.rounding)
        # H may differ in its last digit from that of the loss.
        values = np.linalg.svd(loss.root, compute_uv=False)
        assert error < 1e-14 * size * values[0] / values[min(count, 6) - 1 if not ridge else 5]


def test_up_to_as_many_prompts_as_weights_it_interpolates_and_the_minimum_is_zero():
    counts = (1, 3, 6, 7)
    losses = [EmpiricalLoss(NOISY, count, 1, seed=1) for count in counts]
    assert [float(loss.minimum) > 0 for loss in losses] == [False, False, False, True]
    assert [np.linalg.matrix_rank(loss.root) for loss in losses] == [1, 3, 6, 6]
    # Of all solutions the least model has no part that the prompts do not see.
    for loss in losses[:2]:
        unseen = np.linalg.svd(loss.root)[2][np.linalg.matrix_rank(loss.root) :]
        assert np.max(np.abs(unseen @ loss.least.ravel())) < 1e-13
    assert len({jax.tree.structure(loss) for loss in losses}) == 1


def test_the_excess_keeps_its_digits_near_the_minimum():
    loss, step = EmpiricalLoss(NOISY, 30, 2), theta(4)
    near = loss.least_model() + 1e-9 * step
    moved = (near - loss.least_model()).ravel()
    np.testing.assert_allclose(loss.excess(near), moved @ loss.hessian @ moved / 2, rtol=1e-12)
    np.testing.assert_allclose(loss.gradient(near).ravel(), loss.hessian @ moved, rtol=1e-12)


@pytest.mark.parametrize("task", [NOISY, LinearRegression(covariance(D, 1), N, label_noise=0.2, weight=[1.0, -2.0])])
def test_the_population_error_is_that_of_the_layer_without_a_row_of_labels(task):
    Theta = theta().at[-1].set(0.0)
    layer = flowsim.LinearAttention(Theta[:-1], 1.0)
    error = EmpiricalLoss(task, 1, 1).population(Theta)
    np.testing.assert_allclose(2 * error, flowsim.risk(layer, task, N), rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [pytest.param(NOISY, id="noisy", marks=pytest.mark.slow), pytest.param(SHIFTED, id="shifted")]
)
def test_the_population_error_is_the_mean_over_new_prompts(task):
    Theta = theta(5) / 3
    prompts, labels = draw_prompts(task, 2**17, 1, seed=8)
    squares = np.asarray((jax.vmap(lambda prompt: predict(Theta, prompt))(prompts) - labels) ** 2) / 2
    error = EmpiricalLoss(task, 1, 1).population(Theta)
    spread = float(np.std(squares)) / 2**8.5
    assert abs(float(np.mean(squares)) - error) < 4 * spread < 0.1 * error


def test_the_prompts_of_a_task_share_its_weights_and_larger_draws_keep_smaller_ones():
    task = LinearRegression(covariance(D, 1), N, prior_mean=[3.0, 0.0], prior_covariance=[[1.0, 0.0], [0.0, 0.0]])
    prompts, labels = draw_prompts(task, 300, 2, seed=5)
    w = np.stack([np.linalg.lstsq(x, y)[0] for x, y in zip(prompts.inputs, prompts.labels, strict=True)])
    np.testing.assert_allclose(w[::2], w[1::2], atol=1e-10)
    np.testing.assert_allclose(labels, np.sum(prompts.query * w, axis=1), atol=1e-9)
    np.testing.assert_allclose(w[:, 1], 0.0, atol=1e-9)
    assert abs(np.mean(w[::2, 0]) - 3) < 4 / np.sqrt(300)
    assert abs(np.std(w[::2, 0]) - 1) < 4 / np.sqrt(600)
    assert len({*np.asarray(prompts.query[:, 0])}) == 600
    fewer, _ = draw_prompts(task, 7, 2, seed=5)
    np.testing.assert_array_equal(fewer.inputs, prompts.inputs[:14])
    more, _ = draw_prompts(task, 7, 3, seed=5)
    np.testing.assert_array_equal(more.inputs[::3], fewer.inputs[::2])
    assert not np.any(draw_prompts(task, 7, 2, seed=6)[0].inputs == fewer.inputs)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((NOISY, 0, 1), "tasks must be a whole number of at least 1, but it is 0"),
        ((NOISY, 1, -2), "prompts must be a whole number of at least 1, but it is -2"),
        ((LinearRegression(np.eye(2), np.inf), 1, 1), "context_length must be a known finite number to sample"),
        ((LinearRegression(np.eye(2), length_law=flowsim.LengthLaw([2, 3])), 1, 1), "task must be of one context"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(arguments, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        EmpiricalLoss(*arguments)


def test_a_ridge_below_zero_and_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"^ridge must be .*, but it is -1"):
        EmpiricalLoss(NOISY, 1, 1, ridge=-1.0)
    loss = EmpiricalLoss(NOISY, 1, 1)
    for function in (loss, loss.excess, loss.population):
        with pytest.raises(ValueError, match=r"^model must be an array of shape \(3, 2\), but its shape is \(2, 2\)$"):
            function(jnp.zeros((2, 2)))


def tends(factor):
    @flowsim.claim(f"least.{factor}", "a test", statement="Theta -> Theta*")
    def sides(loss, flow):
        value, allowance = flowsim.limit(flow, lambda Theta: Theta)
        size = jnp.max(jnp.abs(loss.least_model()))
        return flowsim.equal(value, factor * loss.least_model()[None], size, allowance=allowance + loss.rounding)

    return sides


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "ridge"), [(4, 0.0), *(pytest.param(count, 0.0, marks=pytest.mark.slow) for count in (6, 9)), (4, 0.1)]
)
def test_the_flow_from_zero_tends_to_the_least_model_and_to_no_other(count, ridge):
    loss = EmpiricalLoss(NOISY, count, 1, seed=2, ridge=ridge)
    flow = flowsim.gradient_flow(loss, jnp.zeros((3, 2)), stop=flowsim.Stop(excess=1e-26, grad_norm=1e-14))
    true, false = flowsim.judge([tends(1), tends(1 + 1e-6)], loss, flow)
    assert true.verdict is Judgement.HOLDS, true
    assert false.verdict is Judgement.VIOLATED, false
