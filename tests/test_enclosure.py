"""Ball arithmetic of JAX functions: what comes out holds the true values, and what is open is said to be."""

import equinox as eqx
import flint
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim import FunctionLoss, LinearAttentionLoss, LoopedAttention, LoopedLoss
from flowsim._core.balls import enclosure
from flowsim._core.balls.enclosure import enclose, lower, upper
from flowsim._core.balls.loops import all_turns
from flowsim._core.balls.operations import UndecidedError, balls
from flowsim.flow.basin import Landscape, way_to_go
from flowsim.losses.closed_form import is_closed_form
from flowsim.tasks import LinearRegression

RNG = np.random.default_rng(3)
MATRIX = RNG.standard_normal((3, 4))
SQUARE = RNG.standard_normal((3, 3))


def chain(x):
    return jax.lax.scan(lambda carry, row: (carry * 0.5 + jnp.sum(row), carry * row), 1.0, x)


def over_rows(x):
    """A loop whose turns do not read each other: with what is the same in each, a choice and a loop inside."""
    fixed = jnp.diagonal(jnp.linalg.cholesky(gram(x)))
    of_row = lambda row: (row @ jnp.linalg.inv(gram(x)) @ row, jnp.where(row > 0, row, fixed * row), row[::-1])
    return jax.lax.map(of_row, x), jax.lax.map(lambda row: jax.lax.map(jnp.sin, row), x)


def gram(x):
    return x.T @ x + jnp.eye(x.shape[1])


FUNCTIONS = {
    "products": lambda x: (x @ x.T, jnp.einsum("ij,ik->jk", x, x), jnp.sum(x, axis=0), jnp.prod(x), x.T[::-1]),
    "choices": lambda x: (jnp.where(x > 0, x, jnp.exp(x)), jnp.max(x, axis=1), jnp.abs(x), jnp.sign(x), jnp.min(x)),
    "places": lambda x: (x.at[0].add(x[1]), x.at[1].set(0.5), x[jnp.asarray([2, 0])], jnp.pad(x, 1), jnp.stack([x, x])),
    "functions": lambda x: (jnp.tanh(x), jnp.sqrt(x**2 + 1), jnp.log1p(x**2), x / (2 + jnp.sin(x)), jnp.cumsum(x, 1)),
    "powers": lambda x: (x**3, (x**2) ** 0.3, jnp.square(x), x**-2, jnp.expm1(x)),
    "loops": lambda x: (chain(x), jax.lax.fori_loop(0, 3, lambda i, y: y * x[0, 0] + i, 1.0), jax.lax.map(jnp.sum, x)),
    "rows": over_rows,
    "gradients": lambda x: jax.grad(lambda y: jnp.sum(jnp.tanh(y[1:] @ y[:2].T)) + jnp.linalg.norm(y))(x),
    "factors": lambda x: (jnp.linalg.inv(gram(x)), jnp.linalg.solve(gram(x), x[0]), jnp.linalg.cholesky(gram(x))),
    "batches": lambda x: (jnp.linalg.inv(x[:, :1, None] * gram(x)[None]), jnp.linalg.det(gram(x))),
    "branches": lambda x: jax.lax.cond(x[0, 0] > 10, lambda y: y, lambda y: -y, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_enclosure_holds_the_value_and_is_small(name):
    values = jax.tree.leaves(jax.jit(FUNCTIONS[name])(jnp.asarray(MATRIX)))
    found = jax.tree.leaves(enclose(FUNCTIONS[name], MATRIX))
    assert len(values) == len(found)
    for value, ball in zip(values, found, strict=True):
        assert np.shape(value) == ball.shape
        value, low, high = np.asarray(value), lower(ball), upper(ball)
        room = 1e-14 * (1 + np.abs(value))
        assert np.all(low - room <= value) and np.all(value <= high + room)
        assert np.all(high - low <= 4 * np.finfo(float).eps * (1e-300 + np.abs(value)))


@pytest.mark.parametrize("name", ["products", "functions", "powers", "loops"])
def test_an_enclosure_over_a_box_holds_the_values_at_its_points(name):
    radius = 1e-3
    found = jax.tree.leaves(enclose(FUNCTIONS[name], balls(MATRIX, radius)))
    function = jax.jit(FUNCTIONS[name])
    for _ in range(20):
        point = MATRIX + radius * RNG.uniform(-1, 1, MATRIX.shape)
        for value, ball in zip(jax.tree.leaves(function(jnp.asarray(point))), found, strict=True):
            room = 1e-14 * (1 + np.abs(np.asarray(value)))
            assert np.all(lower(ball) - room <= value) and np.all(value <= upper(ball) + room)


def test_turns_together_give_the_same_balls_as_one_after_the_other(monkeypatch):
    around = balls(MATRIX, 1e-3)
    together = jax.tree.leaves(enclose(over_rows, around))
    walked = []
    monkeypatch.setattr(enclosure, "all_turns", lambda params: walked.append(params["length"]))
    for one, other in zip(together, jax.tree.leaves(enclose(over_rows, around)), strict=True):
        assert np.array_equal(lower(one), lower(other)) and np.array_equal(upper(one), upper(other))
    assert walked.count(MATRIX.shape[0]) == 2


def test_a_loop_whose_turns_read_each_other_or_branch_is_walked():
    loops = {
        "alike": lambda x: jax.lax.map(jnp.sum, x),
        "carried": lambda x: jax.lax.scan(lambda total, row: (total + row, total), x[0], x),
        "branched": lambda x: jax.lax.map(lambda row: jax.lax.cond(row[0] > 0, jnp.sin, jnp.cos, row), x),
    }
    found = {}
    for name, loop in loops.items():
        (scan,) = [eqn for eqn in jax.make_jaxpr(loop)(MATRIX).jaxpr.eqns if eqn.primitive.name == "scan"]
        found[name] = all_turns(scan.params) is not None
    assert found == {"alike": True, "carried": False, "branched": False}


def test_more_digits_than_float64_has():
    """(1 + x) - 1 - x is zero, and float64 says 1e-17."""
    (ball,) = enclose(lambda x: ((1 + x) - 1) - x, np.asarray([0.1]))
    assert ball.contains(0)
    assert float(ball.upper()) < 1e-37
    assert abs((1 + 0.1) - 1 - 0.1) > 1e-17


@pytest.mark.parametrize("values", [[1.0, 2.0, 5.0], [1.0, 1.0, 3.0], [1.0, 1.0 + 1e-13, 1e-9]])
def test_a_matrix_is_diagonalized_to_all_digits(values):
    basis, _ = np.linalg.qr(RNG.standard_normal((3, 3)))
    matrix = basis * np.asarray(values) @ basis.T
    matrix = (matrix + matrix.T) / 2

    def residuals(matrix):
        found, vectors = jnp.linalg.eigh(matrix)
        return vectors @ (found[:, None] * vectors.T) - matrix, vectors.T @ vectors - jnp.eye(3), found

    rest, skew, found = enclose(residuals, matrix, proved=False)
    assert np.max(np.abs(upper(rest))) < 1e-34 and np.max(np.abs(upper(skew))) < 1e-34
    np.testing.assert_allclose(upper(found), np.linalg.eigvalsh(matrix), rtol=1e-14, atol=1e-15)


def test_what_the_balls_leave_open_is_undecided():
    wide = balls(np.zeros(2), 1e-3)
    with pytest.raises(UndecidedError, match="cannot be compared"):
        enclose(lambda x: jnp.where(x > 0, x, -x), wide)
    with pytest.raises(UndecidedError, match="the sign"):
        enclose(jnp.sign, wide)
    with pytest.raises(UndecidedError, match="nothing is proved where matrices are diagonalized"):
        enclose(jnp.linalg.eigvalsh, np.eye(2))
    with pytest.raises(UndecidedError, match="svd is not known"):
        enclose(jnp.linalg.svd, np.eye(2))
    with pytest.raises(UndecidedError, match="too many"):
        enclose(lambda x: x @ x, np.zeros((400, 400)))


def test_the_precision_is_changed_for_nobody_else():
    before = flint.ctx.prec
    enclose(lambda x: x * x, np.ones(2))
    assert flint.ctx.prec == before


class Weights(eqx.Module):
    w: jax.Array


def length_to_go(loss, model, conserved=None):
    none = lambda model: None
    field = lambda model: jax.tree.map(jnp.negative, eqx.filter(loss.gradient(model), eqx.is_inexact_array))
    landscape = Landscape(field, conserved or none, is_one_formula=is_closed_form(loss))
    return way_to_go(landscape, model, model)


def test_the_way_to_go_in_a_parabola_is_the_distance_and_a_little_more():
    loss = FunctionLoss(lambda m: jnp.sum(jnp.asarray([1.0, 3.0, 10.0]) * m.w**2) / 2, minimum=0.0)
    for w in ([1e-3, 0.0, 0.0], [1e-3, 1e-3, 1e-3]):
        length = length_to_go(loss, Weights(jnp.asarray(w)))
        slope = np.linalg.norm(np.asarray([1.0, 3.0, 10.0]) * w)
        assert np.linalg.norm(w) <= length == pytest.approx(slope, rel=1e-9)


def test_the_way_to_go_is_not_known_on_a_plateau_at_a_saddle_or_far_from_a_minimum():
    quartic = FunctionLoss(lambda m: jnp.sum(m.w**4), minimum=0.0)
    saddle = FunctionLoss(lambda m: m.w[0] ** 2 - m.w[1] ** 2, minimum=None)
    double = FunctionLoss(lambda m: jnp.sum((m.w**2 - 1) ** 2), minimum=0.0)
    assert length_to_go(quartic, Weights(jnp.full(2, 1e-3))) == np.inf
    assert length_to_go(saddle, Weights(jnp.asarray([1e-9, 1e-9]))) == np.inf
    assert length_to_go(double, Weights(jnp.full(2, 0.3))) == np.inf
    assert 1e-4 <= length_to_go(double, Weights(jnp.full(1, 1 + 1e-4))) <= 2e-4


def test_the_way_to_go_of_symmetric_matrices_is_known_where_others_would_leave():
    """L = tr(A^2)/2 + |A - A^T|^2 times -1: a minimum among symmetric matrices alone."""
    loss = FunctionLoss(lambda m: jnp.trace(m.w @ m.w) / 2, minimum=None)
    symmetric = 1e-3 * (SQUARE + SQUARE.T)
    length = length_to_go(loss, Weights(jnp.asarray(symmetric)))
    assert np.linalg.norm(symmetric) <= length <= 1.001 * np.linalg.norm(symmetric)
    assert length_to_go(loss, Weights(jnp.asarray(1e-3 * SQUARE))) == np.inf


def test_the_way_to_go_across_the_orbit_of_a_scaling_that_the_loss_does_not_feel():
    """L = (u v - 1)^2/2 with u^2 - v^2 conserved: the way from (1 + e, 1) is half as long as |e|, and a little more."""
    loss = FunctionLoss(lambda m: (m.w[0] * m.w[1] - 1) ** 2 / 2, minimum=0.0)
    conserved = lambda m: m.w[0] ** 2 - m.w[1] ** 2
    near = Weights(jnp.asarray([1 + 1e-4, 1.0]))
    assert length_to_go(loss, near) == np.inf
    assert 0.7e-4 <= length_to_go(loss, near, conserved) <= 0.75e-4
    # A quantity that belongs to another loss is no help.
    other = FunctionLoss(lambda m: (m.w[0] * m.w[1] ** 2 - 1) ** 2 / 2, minimum=0.0)
    assert length_to_go(other, near, conserved) == np.inf


def test_the_way_to_go_of_a_loop_holds_the_minimum():
    task = LinearRegression(np.diag([0.5, 1.0]), 20, weights="inverse-covariance")
    loss = LoopedLoss(task, 2)
    best = loss.minimizer
    moved = LoopedAttention(best.A + 1e-6 * jnp.asarray([[1.0, 0.5], [0.5, -1.0]]), loops=2)
    distance = float(jnp.linalg.norm(moved.A - best.A))
    assert distance <= length_to_go(loss, moved) <= 20 * distance


def test_one_layer_s_way_by_its_arrowhead_and_by_its_curvature_both_bound_the_distance():
    loss = LinearAttentionLoss(LinearRegression(np.diag([0.5, 1.0]), 10))
    arrowhead = loss.structure
    U, u = jnp.diag(arrowhead.target) / 0.8, jnp.asarray(0.8)
    state = (U * (1 + 1e-5), u)
    far = (U * 1e-3, u * 1e-3)
    assert arrowhead.way_to_go(far) == np.inf
    limit, proved = arrowhead.limit(state, (U[None], u[None]))
    assert proved
    distance = float(jnp.sqrt(jnp.sum((limit[0] - state[0]) ** 2) + (limit[1] - state[1]) ** 2))
    by_curvature = length_to_go(loss, arrowhead.model(state), loss.conserved)
    for length in (by_curvature, float(arrowhead.way_to_go(state))):
        assert distance <= length < 20 * distance
