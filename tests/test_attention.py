"""The exact loss of one layer of linear attention: against quadrature, drawn prompts, the corners that papers treat,
searches for its minimum, and as a problem file.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import pytest
from systems import Vector

import flowsim
from flowsim import initialization
from flowsim.losses import (
    AttentionLoss,
    LinearAttentionLoss,
    MaskedAttentionLoss,
    MinimumKind,
    MonteCarloLoss,
    MultiHeadLoss,
    MultiLayerLoss,
    RandomCovarianceLoss,
    Reparametrized,
)
from flowsim.losses.one_layer import attention
from flowsim.losses.one_layer.head_risk import HeadRisk
from flowsim.models import (
    LinearAttention,
    MaskedAttention,
    MergedHeads,
    MultiHeadAttention,
    MultiLayerAttention,
    SeparateHeads,
    TokenHeads,
)
from flowsim.models.heads import with_weights
from flowsim.problem import ProblemSpec
from flowsim.problem.specification import spec_of
from flowsim.tasks import LengthLaw, LinearRegression, Prompt, RandomCovarianceRegression
from flowsim.tasks.covariance_laws import SampledLaw, WishartDraw

KINDS = ("merged", "separate", "token", "query token")
FEW_KINDS = ("merged", "separate", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("token", "query token")))


def covariance(rng, d, rank=None):
    root = rng.standard_normal((d, d if rank is None else rank))
    return root @ root.T + (0.5 * np.eye(d) if rank is None else 0)


def laws(rng, d):
    """Arguments of a task, from none to all."""
    mean = rng.standard_normal(d)
    whole = {"prior_mean": mean, "prior_covariance": covariance(rng, d, 1), "label_noise": 0.7}
    return [
        {},
        {"prior_mean": mean},
        {"weights": "inverse-covariance"},
        whole | {"query_covariance": covariance(rng, d)},
    ]


def heads(rng, kind, d, H=2, R=1, trainable=False) -> Any:
    draw = lambda *shape: 0.7 * rng.standard_normal(shape)
    guess = {"w": draw(d), "bias": 0.3, "trainable": trainable}
    if kind == "merged":
        return MergedHeads(draw(H), draw(H, d, d), **guess)
    if kind == "separate":
        return SeparateHeads(draw(H), draw(H, R, d), draw(H, R, d), **guess)
    return TokenHeads(draw(H, d + 1), draw(H, d + 1, d), **guess, query_token=kind == "query token")


def literal(model, X, y, query):
    """The prediction by loops over heads, as the papers write it."""
    d, N = X.shape[1], X.shape[0]
    guess = np.asarray(model.w) @ query + float(model.bias)
    if isinstance(model, TokenHeads):
        tokens = [np.append(x, label) for x, label in zip(X, y, strict=True)]
        tokens += [np.append(query, 0.0)] if model.query_token else []
        G = sum(np.outer(z, z) for z in tokens) / N
        return guess + sum(p @ G @ Q @ query for p, Q in zip(np.asarray(model.p), np.asarray(model.Q), strict=True))
    beta, total = sum(label * x for x, label in zip(X, y, strict=True)) / N, np.zeros((d, d))
    for h, v in enumerate(np.asarray(model.v)):
        if isinstance(model, MergedHeads):
            total += v * np.asarray(model.U)[h]
        else:
            for k, q in zip(np.asarray(model.k)[h], np.asarray(model.q)[h], strict=True):
                total += v * np.outer(k, q)
    return guess + beta @ total @ query


def by_quadrature(task, model):
    """(1/2) E (yhat - <w, x_q>)^2 by a product of Gauss rules, exact for polynomials of these degrees."""
    d, N = task.dimension, int(task.context_length)
    root = lambda matrix: np.linalg.cholesky(np.asarray(matrix))
    values, vectors = np.linalg.eigh(np.asarray(task.weight_covariance))
    noise = 0.0 if task.label_noise is None else float(task.label_noise)
    counts = [3] * (d + N * d + (N if noise else 0)) + [4] * d
    rules = [np.polynomial.hermite_e.hermegauss(count) for count in counts]
    nodes = np.stack([part.ravel() for part in np.meshgrid(*[rule[0] for rule in rules], indexing="ij")], axis=1)
    weights = product_of([rule[1] / rule[1].sum() for rule in rules])
    w = np.asarray(task.weight_mean) + nodes[:, :d] @ (vectors * np.sqrt(np.maximum(values, 0))).T
    X = nodes[:, d : d + N * d].reshape(-1, N, d) @ root(task.covariance).T
    query = nodes[:, -d:] @ root(task.covariance if task.query_covariance is None else task.query_covariance).T
    y = np.einsum("mni,mi->mn", X, w)
    if noise:
        y = y + noise * nodes[:, d + N * d : -d]
    predicted = jax.jit(jax.vmap(lambda *parts: model(Prompt(*parts))))(X, y, query)
    return 0.5 * weights @ (np.asarray(predicted) - np.sum(w * query, axis=1)) ** 2


def product_of(weights):
    """The outer product of the weights of rules, flat."""
    result = np.ones(1)
    for rule in weights:
        result = np.multiply.outer(result, rule).ravel()
    return result


@pytest.fixture
def _no_search(monkeypatch):
    """The value of a loss does not depend on its minimum, for which a search is compiled anew for each law."""
    monkeypatch.setattr(attention, "_searched", lambda residuals, like: like)


@pytest.mark.parametrize("kind", KINDS)
def test_models_predict_what_loops_over_heads_predict(kind):
    rng = np.random.default_rng(1)
    model = heads(rng, kind, 3, H=3, R=2)
    X, y, query = rng.standard_normal((5, 3)), rng.standard_normal(5), rng.standard_normal(3)
    assert float(model(Prompt(jnp.asarray(X), jnp.asarray(y), jnp.asarray(query)))) == pytest.approx(
        literal(model, X, y, query), rel=1e-13
    )


@pytest.mark.parametrize(("d", "N"), [(1, 1), (1, 3), *(pytest.param(2, N, marks=pytest.mark.slow) for N in (1, 2))])
@pytest.mark.usefixtures("_no_search")
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_quadrature(kind, d, N):
    rng = np.random.default_rng(10 * d + N)
    for arguments in laws(rng, d):
        task, model = LinearRegression(covariance(rng, d), N, **arguments), heads(rng, kind, d)
        assert float(AttentionLoss(task, model)(model)) == pytest.approx(by_quadrature(task, model), rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_search")
@pytest.mark.parametrize("kind", ["merged", *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])])
def test_the_loss_is_that_of_quadrature_with_three_examples_in_the_plane(kind):
    rng = np.random.default_rng(23)
    task = LinearRegression(covariance(rng, 2), 3, **laws(rng, 2)[3])
    model = heads(rng, kind, 2)
    assert float(AttentionLoss(task, model)(model)) == pytest.approx(by_quadrature(task, model), rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_search")
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_drawn_prompts(kind):
    rng, d = np.random.default_rng(5), 3
    task = LinearRegression(covariance(rng, d), 4, prior_mean=[1.0, 0.0, -1.0], prior_covariance=covariance(rng, d, 2))
    model = heads(rng, kind, d, H=3, R=2)
    sampled = MonteCarloLoss(task, samples=2**16, replicates=8, key=jax.random.key(2), factor=0.5, method="prompts")
    values = [float(loss(model)) for loss in sampled.prepared(model).replicates()]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - float(AttentionLoss(task, model)(model))) < 4 * error


def test_corners_of_papers_are_special_cases():
    rng, d = np.random.default_rng(2), 3
    task = LinearRegression(covariance(rng, d), 5)
    p, Q = rng.standard_normal(d + 1), rng.standard_normal((d + 1, d))
    zhang = LinearAttention(Q[:d], p[d], p[:d], Q[d])
    mine = TokenHeads(p[None], Q[None], query_token=True)
    one, other = LinearAttentionLoss(task), AttentionLoss(task, mine)
    assert float(other(mine)) == pytest.approx(float(one(zhang)), rel=1e-13)
    assert float(other.minimum) == pytest.approx(float(one.minimum), rel=1e-13)
    ahn, masked = MaskedAttentionLoss(task), TokenHeads(-p[None], Q[None])
    assert 2 * float(AttentionLoss(task, masked)(masked)) == pytest.approx(float(ahn(MaskedAttention(p, Q))), rel=1e-13)
    mean = rng.standard_normal(d)
    plain = LinearRegression(np.eye(d), 5, prior_mean=mean)
    tokens = TokenHeads(rng.standard_normal((2, d + 1)), rng.standard_normal((2, d + 1, d)), trainable=True)
    xie = MultiHeadLoss(plain, MultiHeadAttention(np.zeros((2, d + 1)), np.zeros((2, d + 1, d + 1)), trainable=True))
    assert 2 * float(AttentionLoss(plain, tokens)(tokens)) == pytest.approx(float(xie(tokens.reduced())), rel=1e-13)
    assert 2 * float(AttentionLoss(plain, tokens).minimum) == pytest.approx(float(xie.minimum), rel=1e-13)


@pytest.mark.slow
@pytest.mark.usefixtures("_no_search")
@pytest.mark.parametrize("kind", KINDS)
def test_a_law_of_lengths_is_the_mean_of_its_losses(kind):
    rng = np.random.default_rng(3)
    model, Lambda = heads(rng, kind, 3), covariance(rng, 3)
    lengths, chances = [1.0, 4.0, np.inf], [0.5, 0.3, 0.2]
    extra = {"label_noise": 0.5, "prior_mean": rng.standard_normal(3)}
    single = [float(AttentionLoss(LinearRegression(Lambda, N, **extra), model)(model)) for N in lengths]
    task = LinearRegression(Lambda, length_law=LengthLaw(lengths, chances), **extra)
    assert float(AttentionLoss(task, model)(model)) == pytest.approx(np.dot(chances, single), rel=1e-13)


@pytest.mark.parametrize("N", [2, pytest.param(np.inf, marks=pytest.mark.slow)])
@pytest.mark.parametrize("trainable", [False, True])
@pytest.mark.parametrize("kind", FEW_KINDS)
def test_the_minimum_is_reached_and_searches_find_nothing_lower(kind, trainable, N):
    rng, d = np.random.default_rng(4), 3
    task = LinearRegression(covariance(rng, d), N, prior_mean=[1.0, 2.0, 0.0], label_noise=0.4)
    like = heads(rng, kind, d, H=2, trainable=trainable)
    loss = AttentionLoss(task, like)
    exact = kind in ("merged", "separate") or (kind == "token" and trainable)
    assert loss.minimum_kind is (MinimumKind.EXACT if exact else MinimumKind.NUMERICAL)
    least = loss.least_model()
    assert float(loss(least)) == pytest.approx(float(loss.minimum), rel=1e-13)
    assert float(loss.excess(least)) == pytest.approx(0.0, abs=1e-14)
    slope = loss.gradient(least).weights.values()
    # Of a search the gradient is small as the square root of what it still misses.
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in slope) < (1e-12 if exact else 1e-5)
    if not trainable:
        np.testing.assert_array_equal(least.w, like.w)
    solver = optimistix.LevenbergMarquardt(1e-11, 1e-13)
    missed = lambda weights, _: loss.residuals(with_weights(like, weights))
    find = jax.jit(lambda start: optimistix.least_squares(missed, solver, start, max_steps=500, throw=False).value)
    for seed in range(4):
        start = initialization.linear_heads(1.0, like, seed).weights
        assert float(loss(with_weights(like, find(start)))) >= float(loss.minimum) * (1 - 1e-9) - 1e-12


@pytest.mark.parametrize(("H", "R", "d"), [(1, 1, 3), (1, 2, 3), (2, 1, 3), (2, 2, 3), (4, 1, 3)])
def test_the_least_loss_of_low_rank_is_that_of_the_largest_components(H, R, d):
    """zhang2025: with w ~ N(0, I) and no noise a set of eigenvectors is learned, the largest eigenvalues best."""
    values, N = np.asarray([3.0, 1.5, 0.5]), 7
    like = SeparateHeads(np.zeros(H), np.zeros((H, R, d)), np.zeros((H, R, d)))
    loss = AttentionLoss(LinearRegression(np.diag(values), N), like)
    gains = values / (1 + (1 + values.sum() / values) / N)
    expected = (values.sum() - np.sum(np.sort(gains)[::-1][: H * R])) / 2
    assert float(loss.minimum) == pytest.approx(expected, rel=1e-13)
    np.testing.assert_allclose(loss.least_model().balances, 0, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("trainable", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("query_token", [False, True])
def test_more_than_d_heads_have_the_least_loss_of_any(query_token, trainable):
    """The closed form of `HeadRisk` without the query's token; no more heads do better, and fewer do not."""
    rng, d = np.random.default_rng(11), 2
    task = LinearRegression(covariance(rng, d), 3, prior_mean=[1.0, -2.0], label_noise=0.6)
    kind = "query token" if query_token else "token"
    enough, more = (AttentionLoss(task, heads(np.random.default_rng(1), kind, d, H, 1, trainable)) for H in (3, 5))
    few = AttentionLoss(task, heads(np.random.default_rng(1), kind, d, 2, 1, trainable))
    more = AttentionLoss(task, eqx.tree_at(lambda m: m.w, more.minimizer, enough.minimizer.w))
    assert enough.minimum_kind is more.minimum_kind is MinimumKind.EXACT
    slope = enough.gradient(enough.minimizer).weights.values()
    assert max(float(jnp.max(jnp.abs(leaf))) for leaf in slope) < 1e-11
    if query_token or not trainable:
        np.testing.assert_allclose(enough.minimizer.weights["p"], np.eye(3, 3))
    assert float(few.minimum) >= float(enough.minimum) - 1e-12
    assert float(more.minimum) == pytest.approx(float(enough.minimum), rel=1e-9)
    for seed in range(6):
        drawn = initialization.linear_heads(1.0, enough.minimizer, seed)
        assert float(enough.excess(drawn)) >= -1e-12
    risk = HeadRisk(task)
    if not query_token:
        best: Any = enough.minimizer
        reduced = best.reduced()
        closed = risk.descent_risk + jnp.sum((risk.query_root.T @ (reduced.w - risk.prior_mean)) ** 2) * risk.gap
        assert 2 * float(enough.minimum) - float(reduced.bias) ** 2 == pytest.approx(float(closed), rel=1e-10)


def test_the_excess_keeps_its_digits_near_the_minimum():
    rng = np.random.default_rng(6)
    task = LinearRegression(covariance(rng, 3), 6, prior_covariance=covariance(rng, 3))
    for kind in ("merged", "token"):
        loss = AttentionLoss(task, eqx.tree_at(lambda m: m.w, heads(rng, kind, 3), jnp.zeros(3)))
        direction = {name: rng.standard_normal(x.shape) for name, x in loss.minimizer.weights.items()}
        there = lambda size, d=direction, m=loss.minimizer: with_weights(
            m, {k: x + size * d[k] for k, x in m.weights.items()}
        )
        far, near = (float(loss.excess(there(size))) for size in (1e-4, 1e-8))
        assert near == pytest.approx(1e-8 * far, rel=1e-3)


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_balances_are_conserved_and_fixed_guesses_do_not_move(kind):
    rng = np.random.default_rng(7)
    task = LinearRegression(covariance(rng, 3), 4, label_noise=0.5, prior_mean=[1.0, 0.0, 0.0])
    for trainable in (False, True):
        model = heads(rng, kind, 3, H=3, R=2, trainable=trainable)
        loss = AttentionLoss(task, model)
        slope = loss.gradient(model)
        rates = jax.jvp(loss.conserved, (model,), (slope,))[1]
        assert rates.size >= 3
        np.testing.assert_allclose(rates, 0, atol=1e-12 * float(sum(jnp.sum(x**2) for x in jax.tree.leaves(slope))))
        assert bool(jnp.any(slope.w)) == trainable and not float(slope.bias)
        automatic = jax.grad(loss)(model)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-12), slope, automatic)


@pytest.mark.slow
def test_flows_of_small_heads_reach_the_least_loss_and_keep_every_balance():
    task = LinearRegression(np.diag([2.0, 1.0]), 10, label_noise=0.3)
    start = initialization.linear_heads(0.05, heads(np.random.default_rng(0), "separate", 2, H=3), 1, {"v": 0.2})
    start = eqx.tree_at(lambda m: (m.w, m.bias), start, (jnp.zeros(2), jnp.zeros(())))
    loss = AttentionLoss(task, start)
    flow = flowsim.gradient_flow(loss, start, rtol=1e-9)
    assert flow.status is flowsim.Status.EXCESS
    assert float(flow.loss[-1]) == pytest.approx(float(loss.minimum), rel=1e-9)
    np.testing.assert_allclose(flow.end.balances, start.balances, atol=1e-7)
    drift = flow.certificates.balance_drift
    assert drift is not None and drift < 1e-8


def test_starts_draw_each_array_at_its_own_scale():
    like = heads(np.random.default_rng(0), "separate", 30, H=20, R=2, trainable=True)
    drawn = initialization.linear_heads(1e-2, like, 3, {"v": 1e-6, "w": 2.0})
    for name, scale in {"v": 1e-6, "k": 1e-2, "q": 1e-2, "w": 2.0}.items():
        assert float(jnp.std(drawn.weights[name])) == pytest.approx(scale, rel=0.6)
    assert not np.array_equal(drawn.k, drawn.q)
    with pytest.raises(ValueError, match=r"scales.U must be left out: the weights are v, k, q, w, but it is given"):
        initialization.linear_heads(1e-2, like, 3, {"U": 1.0})


# Reparametrizations


def test_a_reparametrized_loss_is_exact_by_composition():
    task = LinearRegression(np.diag([2.0, 1.0, 0.5]), 8)
    one_layer, rng = LinearAttentionLoss(task), np.random.default_rng(8)
    like = heads(rng, "merged", 3)
    like = eqx.tree_at(lambda m: (m.w, m.bias), like, (jnp.zeros(3), jnp.zeros(())))
    lift = lambda model: LinearAttention(model.readout, 1.0)
    least = AttentionLoss(task, like).least_model()
    loss, direct = Reparametrized(one_layer, lift, least_model=least), AttentionLoss(task, like)
    assert loss.minimum_kind is MinimumKind.EXACT
    assert float(loss.minimum) == float(one_layer.minimum)
    assert float(loss(like)) == pytest.approx(float(direct(like)), rel=1e-13)
    assert float(loss.excess(like)) == pytest.approx(float(direct.excess(like)), rel=1e-13)
    ours, theirs = loss.gradient(like).weights, direct.gradient(like).weights
    for name in ours:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-12, atol=1e-13)
    assert Reparametrized(one_layer, lift).minimum_kind is MinimumKind.NUMERICAL


def test_a_reparametrized_loss_that_cannot_reach_the_minimum_says_so():
    task = LinearRegression(np.diag([2.0, 1.0]), 8)
    like = heads(np.random.default_rng(9), "separate", 2, H=1)
    like = eqx.tree_at(lambda m: (m.w, m.bias), like, (jnp.zeros(2), jnp.zeros(())))
    direct = AttentionLoss(task, like)
    lift = lambda model: LinearAttention(model.readout, 1.0)
    loss = Reparametrized(LinearAttentionLoss(task), lift, least_model=direct.least_model())
    assert loss.minimum_kind is MinimumKind.NUMERICAL
    assert float(loss.minimum) == pytest.approx(float(direct.minimum), rel=1e-12)
    assert float(loss.excess(like)) == pytest.approx(float(direct.excess(like)), rel=1e-11)


@pytest.mark.slow
def test_deep_layers_with_separate_keys_and_queries_come_from_their_loss():
    """Two layers A_l = K_l^T Q_l, as a flow of (K, Q), whose K_l K_l^T - Q_l Q_l^T are conserved."""
    d, rng = 2, np.random.default_rng(3)
    layers = MultiLayerLoss(LinearRegression(np.eye(d), 6, weights="inverse-covariance"), 2, symmetric=False)
    lift = lambda weights: MultiLayerAttention(jnp.swapaxes(weights[0], 1, 2) @ weights[1], symmetric=False)
    balance = lambda weights: weights[0] @ jnp.swapaxes(weights[0], 1, 2) - weights[1] @ jnp.swapaxes(weights[1], 1, 2)
    loss = Reparametrized(layers, lift, conserved=balance)
    start = tuple(jnp.asarray(0.3 * rng.standard_normal((2, d, d))) for _ in range(2))
    assert float(loss(start)) == pytest.approx(float(layers(lift(start))), rel=1e-14)
    flow = flowsim.gradient_flow(loss, start, t1=20.0, rtol=1e-9)
    drift = flow.certificates.balance_drift
    assert drift is not None and drift < 1e-8
    assert float(flow.loss[-1]) < 0.9 * float(flow.loss[0])


@pytest.mark.slow
def test_replicates_of_a_reparametrized_loss_have_their_own_minimum():
    law = SampledLaw(WishartDraw(np.diag([1.0, 0.5]), 4), 256)
    one_layer = RandomCovarianceLoss(RandomCovarianceRegression(law, 5))
    lift = lambda U: LinearAttention(U, 1.0)
    model = jnp.asarray([[0.1, 0.02], [0.0, 0.2]])
    found = Reparametrized(one_layer, lift).replicates()
    assert len(found) == len(one_layer.replicates()) > 1
    for mine, theirs in zip(found, one_layer.replicates(), strict=True):
        assert float(mine.minimum) == float(theirs.minimum)
        assert float(mine.excess(model)) == pytest.approx(float(theirs.excess(lift(model))), rel=1e-13)


def test_what_is_no_reparametrization_is_refused():
    loss = LinearAttentionLoss(LinearRegression(np.eye(2), 3))
    with pytest.raises(ValueError, match="lift must be a map to a LinearAttention, but it returned a MaskedAttention"):
        Reparametrized(loss, lambda theta: MaskedAttention(theta, jnp.zeros((3, 2))))(jnp.zeros(3))
    sampled = MonteCarloLoss(LinearRegression(np.eye(2), 3), samples=256, key=jax.random.key(0))
    with pytest.raises(ValueError, match="loss must be an exact one, but it is a MonteCarloLoss"):
        Reparametrized(sampled, lambda theta: theta)


# Problem files

TASK = {"covariance": {"eigenvalues": [2.0, 1.0]}, "context_length": 5}
EVERYTHING = {
    "label_noise": 0.3,
    "prior_mean": [1.0, 0.0],
    "prior_covariance": [[1.0, 0.5], [0.5, 1.0]],
    "query_covariance": "identity",
    "context_length": {"lengths": [5, 20, "inf"], "probabilities": [0.5, 0.25, 0.25]},
}


def problem(model=None, task=None, init=None, loss=None):
    tables = {
        "task": TASK | (task or {}),
        "model": {"architecture": "attention"} | (model or {}),
        "init": {"scale": 0.1} | (init or {}) if (init or {}).get("kind") != "explicit" else init,
    }
    return spec_of(tables | ({"loss": loss} if loss else {}))


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ({}, ("v", "U")),
        ({"heads": 3, "keys": "separate", "rank": 2}, ("v", "k", "q")),
        ({"heads": 2, "blocks": "all", "guess": "trainable"}, ("p", "Q", "w")),
        pytest.param({"blocks": "all", "query_token": True}, ("p", "Q"), marks=pytest.mark.slow),
    ],
)
def test_problem_files_say_all_of_it(model, names):
    spec = problem(model, EVERYTHING)
    built = spec.build()
    loss: Any = built.loss
    assert tuple(built.start.weights) == names
    assert float(loss.task.context_length) == pytest.approx(1 / (0.5 / 5 + 0.25 / 20))
    assert loss.task.shifts == (
        "label_noise", "query_covariance", "prior_mean", "prior_covariance", "length_law",
    )  # fmt: skip
    again = ProblemSpec.from_toml(spec.to_toml())
    assert again == spec
    assert float(again.build().loss(built.start)) == float(built.loss(built.start))


def test_explicit_starts_are_taken_by_name():
    init = {"kind": "explicit", "v": [1.0], "k": [[[1.0, 2.0]]], "q": [[[0.5, 0.0]]]}
    built = problem({"keys": "separate"}, {"context_length": 1}, init).build()
    np.testing.assert_array_equal(built.start.readout, [[0.5, 0.0], [1.0, 0.0]])
    expected = by_quadrature(LinearRegression(np.diag([2.0, 1.0]), 1), built.start)
    assert float(built.loss(built.start)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_a_random_covariance_keeps_the_exact_loss():
    law = {"family": "gamma", "shape": [2.0, 3.0], "rate": [1.0, 1.0]}
    task = {"context_length": 5, "covariance_law": law}
    model = {"architecture": "attention", "keys": "separate", "heads": 2}
    built = spec_of({"task": task, "model": model, "init": {"scale": 0.3}}).build()
    assert isinstance(built.loss, Reparametrized) and built.loss.minimum_kind is MinimumKind.EXACT
    drawn = MonteCarloLoss(built.task, samples=2**16, replicates=8, key=jax.random.key(1), factor=0.5, method="prompts")
    values = [float(loss(built.start)) for loss in drawn.prepared(built.start).replicates()]
    error = np.std(values, ddof=1) / np.sqrt(len(values))
    assert abs(np.mean(values) - float(built.loss(built.start))) < 4 * error
    with pytest.raises(ValueError, match="model.heads must be such that heads times rank is at least the dimension 2"):
        spec_of({"task": task, "model": model | {"heads": 1}, "init": {"scale": 0.3}})


SEPARATE = {"keys": "separate"}
INDEFINITE = {"prior_covariance": [[1.0, 2.0], [2.0, 1.0]]}
BAD = [
    ({"heads": 0}, {}, {}, "model.heads must be a whole number of at least 1, but it is 0"),
    (SEPARATE | {"rank": 0}, {}, {}, "model.rank must be a whole number of at least 1, but it is 0"),
    (
        SEPARATE | {"rank": 3},
        {},
        {},
        "model.rank must be at most the dimension, 2, beyond which it adds nothing, but it",
    ),
    ({"rank": 1}, {}, {}, 'model.rank must be left out without keys = "separate", but it is given'),
    ({"keys": "both"}, {}, {}, 'model.keys must be "merged" or "separate", but it is "both"'),
    ({"blocks": "all", "keys": "merged"}, {}, {}, 'model.keys must be left out with blocks = "all", whose weights are'),
    ({"query_token": True}, {}, {}, 'model.query_token must be left out without blocks = "all": on labels that token'),
    ({}, {"label_noise": -1.0}, {}, "task.label_noise must be a number of at least 0, but it is -1.0"),
    ({}, INDEFINITE, {}, "task.prior_covariance must be positive semidefinite, but its smallest eigenvalue is -1"),
    (
        {},
        {"context_length": {"lengths": [5], "probabilities": [0.9]}},
        {},
        "task.context_length.probabilities must be numbers that add",
    ),
    (
        {},
        {"context_length": {"lengths": []}},
        {},
        "task.context_length.lengths must be at least one length",
    ),
    ({}, {"context_length": {"lengths": [2.5]}}, {}, "task.context_length.lengths must be"),
    ({}, {}, {"scales": {"k": 1.0}}, "init.scales.k must be left out: the weights are v, U, but it is given"),
]


@pytest.mark.parametrize(("model", "task", "init", "message"), BAD)
def test_bad_tables_are_refused_in_one_line(model, task, init, message):
    with pytest.raises(ValueError) as raised:
        problem(model, task, init).build()
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)


def test_other_architectures_refuse_what_their_losses_do_not_know():
    for name, value in EVERYTHING.items():
        with pytest.raises(ValueError, match=rf"task.{name} must be .* with architecture = \"linear-attention\""):
            spec_of({"task": TASK | {name: value}, "init": {"kind": "random", "scale": 0.1}})
    with pytest.raises(ValueError, match="task.label_noise must be left out with loss.kind"):
        problem(task={"label_noise": 0.1}, loss={"kind": "monte-carlo"})
    with pytest.raises(ValueError, match="task.context_length must be one length with loss.kind"):
        problem(task={"context_length": {"lengths": [3, 4]}}, loss={"kind": "monte-carlo"})


@pytest.mark.parametrize("kind", FEW_KINDS)
def test_heads_with_another_guess_have_their_own_loss(kind):
    """A loss knows heads of any fixed guess; its excess is over the minimum of the guess that it was built for."""
    rng = np.random.default_rng(31)
    task = LinearRegression(covariance(rng, 2), 5, **laws(rng, 2)[-1])
    one, other = heads(rng, kind, 2), heads(rng, kind, 2)
    other = eqx.tree_at(lambda m: m.bias, other, jnp.asarray(-1.7))
    loss, own = AttentionLoss(task, one), AttentionLoss(task, other)
    assert float(loss(other)) == pytest.approx(float(own(other)), rel=1e-13)
    assert float(loss.excess(other)) == pytest.approx(float(own(other) - loss.minimum), rel=1e-11)
    slopes = (jax.tree.leaves(each.gradient(other)) for each in (loss, own))
    for mine, theirs in zip(*slopes, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-12)


def test_heads_of_another_kind_are_refused():
    rng = np.random.default_rng(32)
    task = LinearRegression(np.eye(2), 5)
    loss = AttentionLoss(task, heads(rng, "separate", 2, H=1))
    token = AttentionLoss(task, heads(rng, "token", 2))
    cases = [
        (loss, heads(rng, "merged", 2), "the class is MergedHeads and not SeparateHeads"),
        (loss, heads(rng, "separate", 3), "the dimension is 3 and not 2"),
        (loss, heads(rng, "separate", 2, trainable=True), "trainable is True and not False"),
        (token, heads(rng, "query token", 2), "query_token is True and not False"),
    ]
    for each, model, words in cases:
        for function in (each, each.excess, each.gradient):
            with pytest.raises(ValueError, match=f"model must be of the kind that the loss was built for, but {words}"):
                function(model)
    more = heads(rng, "separate", 2, H=2)
    assert np.isfinite(float(loss(more)))
    with pytest.raises(ValueError, match="their rank is 2, and the minimum is of heads of rank 1"):
        loss.excess(more)


@pytest.mark.parametrize(
    "model",
    [
        {"keys": "merged"},
        {"keys": "separate", "heads": 2},
        {"blocks": "all"},
        pytest.param({"blocks": "all", "heads": 3}, marks=pytest.mark.slow),
    ],
)
def test_a_problem_file_has_a_guess_in_any_dimension(model):
    guess = {"linear": [1.0, 2.0, -1.0], "bias": 0.5}
    tables = {
        "task": {"context_length": 4, "covariance": "identity", "dimension": 3},
        "model": {"architecture": "attention", "guess": guess} | model,
        "init": {"kind": "random", "scale": 0.1},
    }
    problem = spec_of(tables).build()
    np.testing.assert_array_equal(problem.start.w, guess["linear"])
    assert spec_of(tables | {"model": tables["model"] | {"guess": "trainable"}}).build().start.trainable
    for wrong in ([1.0, 2.0], []):
        with pytest.raises(ValueError, match=r"model\.guess\.linear must be a list of 3 numbers"):
            spec_of(tables | {"model": tables["model"] | {"guess": {"linear": wrong}}})


def test_a_prior_covariance_may_be_singular_by_its_spectrum_or_the_identity():
    tables = {"context_length": 4, "covariance": "identity", "dimension": 2}
    for given, expected in (({"eigenvalues": [1.0, 0.0]}, np.diag([1.0, 0.0])), ("identity", np.eye(2))):
        spec = spec_of({"task": tables | {"prior_covariance": given}, "model": {"architecture": "attention"},
                        "init": {"scale": 0.1}})  # fmt: skip
        np.testing.assert_array_equal(spec.build().task.weight_covariance, expected)


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"lengths": []}, r"context_length\.lengths must be at least one length"),
        ({"lengths": [0, 3]}, r"task\.context_length\.lengths must be whole numbers of at least 1"),
        (
            {"lengths": [1, 3], "probabilities": [0.5, 0.2]},
            r"context_length\.probabilities must be numbers that add up",
        ),
    ],
)
def test_a_wrong_law_of_lengths_names_its_table(law, words):
    tables = {"context_length": law, "covariance": "identity", "dimension": 2}
    with pytest.raises(ValueError, match=words):
        spec_of({"task": tables, "model": {"architecture": "attention"}, "init": {"scale": 0.1}}).build()


def test_a_least_model_that_is_not_finite_is_no_exact_minimum():
    loss = flowsim.FunctionLoss(lambda model: jnp.sum(model.x**2), minimum=0.0)
    kinds = [
        Reparametrized(loss, lambda x: Vector(2 * x), least_model=jnp.full(2, least)).minimum_kind
        for least in (0.0, jnp.nan)
    ]
    assert kinds == ["exact", "numerical"]


@pytest.mark.slow
def test_a_replicate_of_a_reparametrized_loss_is_no_lower_than_its_minimum_at_the_least_model():
    law = SampledLaw(WishartDraw(np.diag([1.0, 0.5]), 4), 256)
    one_layer = RandomCovarianceLoss(RandomCovarianceRegression(law, 5))
    loss = Reparametrized(one_layer, lambda U: LinearAttention(U, 1.0), least_model=jnp.diag(jnp.asarray([0.4, 0.3])))
    for replicate in loss.replicates():
        assert float(replicate.excess(loss.least_model())) >= -1e-14


@pytest.mark.parametrize(
    "guess",
    [
        {},
        {"w": [0.3, -0.2, 0.1], "bias": 0.2},
        pytest.param({"w": [0.3, -0.2, 0.1], "trainable": True}, marks=pytest.mark.slow),
    ],
)
def test_the_excess_of_low_rank_keeps_its_digits_down_to_the_minimum(guess):
    """Near a minimum it is quadratic in the distance, at 1e-11 of it too, where a difference of losses is rounding."""
    task = LinearRegression(np.diag([2.0, 1.0, 0.3]), 12, prior_mean=[0.1, 0.2, 0.4] if guess else None)
    like = SeparateHeads(np.zeros(2), np.zeros((2, 1, 3)), np.zeros((2, 1, 3)), **guess)
    loss = AttentionLoss(task, like)
    least, rng = loss.least_model(), np.random.default_rng(4)
    assert isinstance(least, SeparateHeads)
    away = [jnp.asarray(rng.standard_normal(leaf.shape)) for leaf in (least.v, least.k, least.q)]

    def at(distance):
        weights = (leaf + distance * step for leaf, step in zip((least.v, least.k, least.q), away, strict=True))
        model = eqx.tree_at(lambda heads: (heads.v, heads.k, heads.q), least, tuple(weights))
        return float(loss.excess(model)) / distance**2

    assert at(1e-11) == pytest.approx(at(1e-6), rel=1e-3)
    # Far away it is the difference of the losses.
    far = eqx.tree_at(lambda heads: heads.k, least, least.k + 1.0)
    assert float(loss.excess(far)) == pytest.approx(float(loss(far) - loss.minimum), rel=1e-12)
