"""A loss over finitely many prompts is the sum that it says, to rounding and however near its minimum."""

import math
from fractions import Fraction

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import covariance

import flowsim
from flowsim.claims import Judgement
from flowsim.losses import FiniteLoss
from flowsim.losses.closed_form import is_closed_form
from flowsim.tasks import Prompt, multinomial_outcomes

STAYS = 0.8


def next_token(w, prompt):
    """Logits of the next token of a chain on {0, 1}, from the last token of the prompt."""
    return jnp.stack([0.0, jnp.where(prompt[-1] == 1, w, -w)])


def chain(prompts, probabilities, stays=STAYS):
    """The loss of the next token; a chain stays where it is with this probability."""
    laws = [[stays, 1 - stays] if prompt[-1] == 0 else [1 - stays, stays] for prompt in prompts]
    options = {"residual": "cross-entropy", "predict": next_token, "realizable": True}
    return FiniteLoss(np.asarray(prompts), laws, probabilities, **options)


def strings_of_the_chain(length):
    """All strings of a symmetric chain with their probabilities."""
    strings = np.array(np.meshgrid(*[[0, 1]] * length)).reshape(length, -1).T
    moves = np.sum(np.diff(strings, axis=1) != 0, axis=1)
    return strings, 0.5 * STAYS ** (length - 1 - moves) * (1 - STAYS) ** moves


def divergence(law, logits):
    """KL(law || softmax(logits)) of the given floats, in 3000 bits."""
    with flint.ctx.workprec(3000):
        law, logits = ([flint.arb(float(x)) for x in values] for values in (law, logits))
        total = sum(x.exp() for x in logits)
        whole = sum(law)
        return float(
            sum(q / whole * (q / whole * total / z.exp()).log() for q, z in zip(law, logits, strict=True) if q > 0)
        )


@eqx.filter_jit
def numbers(loss, model):
    """The loss, its excess and its gradient."""
    return loss(model), loss.excess(model), loss.gradient(model)


def itself(model, prompt):
    return model


def one_prompt(law):
    """The loss of one prompt whose prediction is the model itself."""
    return FiniteLoss([np.zeros(1)], [law], [1.0], residual="cross-entropy", predict=itself, realizable=True)


@pytest.mark.slow
def test_it_is_the_average_of_the_same_prompts_drawn():
    task = flowsim.LinearRegression(covariance(2, 0), 5)
    model = flowsim.SoftmaxAttention(0.3 * np.ones((1, 3, 3)), 0.2 * np.eye(3)[None])
    sampled = flowsim.MonteCarloLoss(task, 256, factor=0.5, method="prompts").prepared(model)
    keys = jax.vmap(lambda i: jax.random.fold_in(sampled.key, i))(jnp.arange(256))
    prompts, labels = jax.vmap(task.sample)(keys)
    loss = FiniteLoss(prompts, labels, np.full(256, 1 / 256))
    value, excess, slope = numbers(loss, model)
    np.testing.assert_allclose(value, sampled(model), rtol=1e-13)
    for ours, theirs in zip(jax.tree.leaves(slope), jax.tree.leaves(sampled.gradient(model)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-11, atol=1e-14)
    assert np.isnan(loss.minimum) and np.isnan(excess)
    assert not is_closed_form(loss)


def test_nodes_of_a_quadrature_give_the_exact_loss_of_linear_attention():
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)  # exact to the fifth degree, of each coordinate
    grid = np.stack(np.meshgrid(*[nodes] * 4, indexing="ij")).reshape(4, -1)
    w, *x, query = grid
    chances = np.prod(np.stack(np.meshgrid(*[weights / np.sum(weights)] * 4)).reshape(4, -1), axis=0)
    inputs = jnp.stack(x, axis=1)
    prompts = jax.vmap(Prompt)(inputs[..., None], inputs * w[:, None], jnp.asarray(query[:, None]))
    model = flowsim.LinearAttention([[0.7]], 0.4)
    value, _, slope = numbers(FiniteLoss(prompts, w * query, chances), model)
    exact, _, exact_slope = numbers(flowsim.LinearAttentionLoss(flowsim.LinearRegression([[1.0]], 2)), model)
    np.testing.assert_allclose(value, exact, rtol=1e-13)
    np.testing.assert_allclose(slope.U11, exact_slope.U11, rtol=1e-12)


def test_the_gradient_of_a_markov_chain_is_a_difference_in_many_digits():
    loss, w = chain(*strings_of_the_chain(4)), 0.3
    with flint.ctx.workprec(400):
        step = flint.arb(10) ** -40

        def exact(w):
            return sum(
                p * (1 + (sign * w).exp()).log() for p, sign in ((flint.arb(STAYS), -1), (1 - flint.arb(STAYS), 1))
            )

        value, slope = exact(flint.arb(w)), (exact(w + step) - exact(w - step)) / (2 * step)
    found, excess, gradient = numbers(loss, jnp.asarray(w))
    np.testing.assert_allclose(found, float(value), rtol=1e-15)
    np.testing.assert_allclose(gradient, float(slope), rtol=1e-14)
    entropy = -STAYS * math.log(STAYS) - (1 - STAYS) * math.log(1 - STAYS)
    np.testing.assert_allclose(loss.minimum, entropy, rtol=1e-15)
    np.testing.assert_allclose(loss.minimum + excess, found, rtol=1e-15)


UNEVEN = np.array([0.5, 0.25, 0.125, 0.125])  # whose logarithms lie on a line, so that logits can hit them
NEAR = np.array([0.3, -1.0, 0.4, 0.9])


@pytest.mark.parametrize(
    ("law", "logits"),
    [
        *[(np.full(4, 0.25), size * NEAR) for size in (1e-140, 1e-10, 1e-3, 1.0, 100.0, 1e4)],
        *[(np.full(4, 0.25), size * NEAR + 2.0) for size in (2.0**-30, 1e-3)],
        *[(UNEVEN, np.log(UNEVEN) + size * NEAR) for size in (1e-2, 1.0, 1e3)],
        *[(np.eye(4)[1], np.array([0.0, gap, 0.5, -0.3])) for gap in (700.0, 100.0, 10.0, 0.0, -1e4)],
        (np.array([0.5, 0.5, 0, 0]), np.array([0, 1e-9, -40.0, -50.0])),
        (np.array([0.5, 0.5 - 1e-200, 1e-200, 0]), np.array([0, 0.1, 900.0, -700.0])),
    ],
)
def test_the_excess_and_its_slope_keep_their_digits_near_the_infimum(law, logits):
    _, excess, slope = numbers(one_prompt(law), jnp.asarray(logits))
    np.testing.assert_allclose(excess, divergence(law, logits), rtol=1e-12)
    with flint.ctx.workprec(3000):
        total = sum(flint.arb(float(z)).exp() for z in logits)
        exact = [
            float(flint.arb(float(z)).exp() / total - flint.arb(float(q))) for q, z in zip(law, logits, strict=True)
        ]
    np.testing.assert_allclose(slope, exact, rtol=0, atol=2e-12 * np.max(np.abs(exact)))


def test_curvatures_are_those_of_softmax_even_where_the_loss_is_huge():
    curvature = jax.jit(jax.hessian(one_prompt(np.full(4, 0.25)).excess))
    for logits in (1e-12 * NEAR, NEAR, 1e3 * NEAR):
        p = np.exp(logits - np.max(logits)) / np.sum(np.exp(logits - np.max(logits)))
        np.testing.assert_allclose(curvature(jnp.asarray(logits)), np.diag(p) - np.outer(p, p), atol=1e-14)


def test_a_realizable_squared_loss_has_no_floor():
    loss = FiniteLoss(np.array([1.0, 2.0]), [0.0, 0.0], [0.25, 0.75], predict=lambda w, x: w * x, realizable=True)
    w = jnp.asarray(1e-100)
    np.testing.assert_allclose(loss.excess(w), 0.5 * (0.25 + 3.0) * 1e-200, rtol=1e-15)
    assert (float(loss.minimum), loss.minimum_kind, loss.subtracts) == (0.0, "exact", False)
    known = flowsim.FunctionLoss(loss, minimum=-1.0)
    assert float(known.excess(w)) == 1.0 and not is_closed_form(known)


@pytest.mark.parametrize("exact", [True, False])
def test_counts_have_their_exact_probabilities(exact):
    law = [Fraction(1, 2), Fraction(1, 3), Fraction(1, 6)] if exact else [0.5, 1 / 3, 1 / 6]
    counts, found = multinomial_outcomes(7, law)
    assert counts.shape == (36, 3) and {*counts.sum(axis=1)} == {7}
    assert len({*map(tuple, counts.tolist())}) == 36
    for row, p in zip(counts.tolist(), found, strict=True):
        coefficient = math.factorial(7) // math.prod(map(math.factorial, row))
        true = (
            coefficient
            * math.prod(Fraction(q) ** n for q, n in zip(law, row, strict=True))
            / sum((Fraction(q) for q in law), Fraction(0)) ** 7
        )
        assert p == float(true)
    assert abs(math.fsum(found) - 1) < 1e-15
    assert multinomial_outcomes(3, [1])[0].tolist() == [[3]]


def test_the_order_of_prompts_and_merging_leave_the_loss_as_it_is():
    strings, chances = strings_of_the_chain(6)
    w, shuffled = jnp.asarray(-0.4), np.random.default_rng(0).permutation(len(strings))
    last = np.array([[0], [1]])
    merged = [math.fsum(chances[strings[:, -1] == x]) for x in (0, 1)]
    losses = chain(strings, chances), chain(strings[shuffled], chances[shuffled]), chain(last, merged)
    first, *others = (np.array(numbers(loss, w)) for loss in losses)
    for other in others:
        np.testing.assert_allclose(other, first, rtol=1e-14)


GOOD = {"prompts": np.arange(2.0), "targets": np.zeros(2), "probabilities": [0.5, 0.5]}
LAWS = {"targets": [[0.5, 0.5], [0.2, 0.8]], "residual": "cross-entropy"}


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"probabilities": [0.5, 0.6]}, "probabilities must be probabilities with sum 1, but their sum is 1.1"),
        ({"probabilities": [1.5, -0.5]}, "probabilities must be positive, but they hold -0.5"),
        ({"probabilities": [1.0, 0.0]}, "probabilities must be positive, but they hold 0"),
        (
            {"probabilities": [[0.5, 0.5]]},
            r"probabilities must be an array of shape \(any,\), but its shape is \(1, 2\)",
        ),
        ({"probabilities": []}, "probabilities must be probabilities with sum 1, but their sum is 0"),
        ({"targets": np.zeros(3)}, r"targets must be an array of shape \(2,\), but its shape is \(3,\)"),
        ({"prompts": (np.arange(2), np.zeros(3))}, r"prompts must be arrays with 2 prompts, .* one is \(3,\)"),
        ({"prompts": np.float64(1.0)}, r"prompts must be arrays with 2 prompts, .* one is \(\)"),
        ({"prompts": ["first", "second"]}, r"prompts must be arrays with 2 prompts, .* one is \(\)"),
        ({"prompts": (np.arange(2), np.array([1.0, np.nan]))}, "prompts must be numbers, but they hold NaN"),
        ({"prompts": np.array([1j, 2.0])}, "prompts must be arrays of real numbers, but one is array"),
        ({"prompts": np.array(["a", "b"])}, "prompts must be arrays of real numbers, but one is array"),
        ({"prompts": [], "targets": []}, r"targets must be at least one, on the first axis, but got \[\]"),
        ({"targets": 3.0}, "targets must be at least one, on the first axis, but got 3.0"),
        ({"targets": None}, "targets must be at least one, on the first axis, but got None"),
        ({"prompts": None}, r"prompts must be arrays with 2 prompts, .* one is \(\)"),
        ({"residual": "squares"}, 'residual must be one of squared, cross-entropy, but it is "squares"'),
        (LAWS | {"targets": [0.5, 0.5]}, r"targets must be an array of shape \(2, any\), but its shape is \(2,\)"),
        (
            LAWS | {"targets": [[0.5, 0.5], [0.2, 0.7]]},
            "targets must be probabilities with sum 1, but their sum is 0.9",
        ),
        (LAWS | {"targets": [[0.5, 0.5], [1.2, -0.2]]}, "targets must be at least 0, but they hold -0.2"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(changes, line):
    with pytest.raises(ValueError, match=f"^{line}"):
        FiniteLoss(**(GOOD | changes))


def test_a_prediction_of_another_shape_is_refused_rather_than_broadcast():
    loss = FiniteLoss(**GOOD, predict=lambda w, x: w * x)
    with pytest.raises(ValueError, match=r"^model must be .* prediction has the shape \(\) .*, but it has \(1,\)$"):
        loss(jnp.ones(1))


@pytest.mark.parametrize("law", [[0.5, 0.6], [1.5, -0.5], [1, 0], [], [math.nan, 0.5]])
def test_laws_of_features_are_refused(law):
    with pytest.raises(ValueError, match="^probabilities must be positive with sum 1"):
        multinomial_outcomes(3, law)


@pytest.mark.slow
def test_merged_prompts_have_the_same_flow_and_limit():
    strings, chances = strings_of_the_chain(5)
    losses = chain(strings, chances), chain(np.array([[0], [1]]), [0.5, 0.5])
    whole, merged = (flowsim.gradient_flow(loss, jnp.asarray(-1.0), times=[1.0], rtol=1e-10) for loss in losses)
    np.testing.assert_allclose(whole.at(1.0), merged.at(1.0), rtol=1e-8)
    np.testing.assert_allclose(merged.velocity[0], STAYS - 1 / (1 + math.e), rtol=1e-12)
    end, allowance = flowsim.limit(merged, lambda w: w)
    assert abs(end[0] - math.log(STAYS / (1 - STAYS))) <= allowance[0] + 1e-12 < 1e-4


@flowsim.claim("chain.convex", "the loss is convex in w")
def convex(flow):
    """L - L* <= |w(0) - w*|^2/(2 t)"""
    return flowsim.at_most(2 * flow.t * flow.excess, (flow.start - math.log(4)) ** 2)


@flowsim.claim("chain.planted", "too fast")
def too_fast(flow):
    """L - L* <= (L(0) - L*) e^-t"""
    return flowsim.at_most(flow.excess, flow.excess[0] * jnp.exp(-flow.t))


@flowsim.claim("chain.descent", "the descent lemma")
def falls(descent):
    """L(w_k+1) <= L(w_k)"""
    return flowsim.at_most(descent.excess[1:], descent.excess[:-1])


@pytest.mark.slow
def test_claims_families_descents_and_certificates_take_it(tmp_path):
    loss, start = chain(np.array([[0], [1]]), [0.5, 0.5]), jnp.asarray(-1.0)
    flow = flowsim.gradient_flow(loss, start)
    verdicts = flowsim.judge([convex, too_fast], loss, flow)
    assert [verdict.verdict for verdict in verdicts] == [Judgement.HOLDS, Judgement.VIOLATED]
    flow.save(tmp_path / "flow.npz")
    again = flowsim.Trajectory.load(tmp_path / "flow.npz", like=start)
    np.testing.assert_array_equal(again.excess, flow.excess)
    descent = flowsim.gradient_descent(loss, start, 1.0, 30)
    assert flowsim.check(falls, loss, descent).verdict is Judgement.HOLDS
    family = flowsim.Family(
        lambda stays: (chain(np.array([[0], [1]]), [0.5, 0.5], stays), start), {"stays": [0.6, 0.7, 0.8]}
    )
    (verdict,) = family.judge([too_fast])
    assert verdict.verdict is Judgement.VIOLATED
    assert flowsim.certify(convex, loss, start, t1=1.0)["verdict"] == "proved"
