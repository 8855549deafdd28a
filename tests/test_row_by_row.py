"""Which comparisons read each time of a flow by itself."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from flowsim._core.balls.reading import Kind, kinds_of
from flowsim.claims import at_most, judge
from flowsim.claims.deciding.ending import depends_on_others, reads_the_end
from flowsim.claims.evidence import Evidence, comparing
from flowsim.experiments.run import claims_about
from flowsim.problem import ProblemSpec

ROWS, d = 8, 3
SQUARE = jnp.asarray(np.diag([1.0, 2.0, 3.0]))
TIMES = jnp.arange(float(ROWS))

BY_ITSELF = {
    "a number of each row": lambda U, u: u**2 - jnp.sum(U**2, axis=(1, 2)),
    "a loop over the rows": lambda U, u: jax.lax.map(lambda one: jnp.linalg.norm(SQUARE @ one), U),
    "a batch": lambda U, u: jnp.einsum("ij,tjk,tkl->til", SQUARE, U, U)[:, 0],
    "a factorization of each": lambda U, u: jnp.linalg.eigvalsh(U @ jnp.swapaxes(U, 1, 2)),
    "beside the start": lambda U, u: jnp.where(u > u[0], u, jnp.sum(U[0])),
    "one after the other": lambda U, u: jnp.concatenate([u, jnp.ones(1), u[:1]]),
    "the start": lambda U, u: U[0],
}
NOT_BY_ITSELF = {
    "the largest": lambda U, u: u - jnp.max(u),
    "a running sum": lambda U, u: jnp.cumsum(u),
    "the next row": lambda U, u: jnp.append(u[1:], u[:1]),
    "the end": lambda U, u: u - u[-1],
    "the number of the row": lambda U, u: u * TIMES,
    "a loop that carries": lambda U, u: jax.lax.scan(lambda sum, one: (sum + one, sum), 0.0, u)[1],
    "a loop that reads all": lambda U, u: jax.lax.map(lambda one: one + jnp.sum(u), u),
    "products of rows": lambda U, u: jnp.outer(u, u),
    "the rows turned": lambda U, u: jnp.sum(jnp.transpose(U[:, :, 0]), axis=1),
    "the rows in another order": lambda U, u: u[::-1],
    "sorted rows": lambda U, u: jnp.sort(u),
    "a sum of two parts": lambda U, u: jnp.concatenate([u, u])[1 : ROWS + 1],
    "mixed by reshaping": lambda U, u: jnp.reshape(jnp.transpose(U, (1, 0, 2)), (ROWS, d, d)),
}


def kind(function):
    jaxpr = jax.make_jaxpr(function)(jnp.ones((ROWS, d, d)), jnp.ones(ROWS)).jaxpr
    return kinds_of(jaxpr, [Kind.ROWS, Kind.ROWS], ROWS)[0]


@pytest.mark.parametrize("name", BY_ITSELF)
def test_what_reads_each_row_by_itself_is_told(name):
    assert kind(BY_ITSELF[name]) is not Kind.MIXED


@pytest.mark.parametrize("name", NOT_BY_ITSELF)
def test_what_reads_other_rows_is_never_taken_for_one_that_does_not(name):
    assert kind(NOT_BY_ITSELF[name]) is Kind.MIXED


def test_an_even_array_is_the_same_in_all_rows():
    assert kind(lambda U, u: jnp.broadcast_to(U[0, 0, 0], u.shape)) is Kind.EVEN
    assert kind(lambda U, u: u + jnp.broadcast_to(jnp.sum(U[0]), u.shape)) is Kind.ROWS


@pytest.fixture(scope="module")
def problem():
    eigenvalues = np.geomspace(2, 0.5, 12).tolist()
    text = f"""
        [task]
        context_length = 10
        covariance = {{eigenvalues = {eigenvalues}, rotation_seed = 0}}
        [init]
        kind = "balanced"
        scale = 0.1
    """
    return ProblemSpec.from_toml(text).build().prepared()


@pytest.mark.slow
def test_what_a_program_shows_is_what_other_flows_show(problem, monkeypatch):
    """Without the program, flows with other ends, other times and other numbers are compared."""
    run, claims = problem.run(), claims_about(problem, None)
    evidence = Evidence(problem.loss, run, claims=claims)
    case = evidence.cases[0]
    found = [one for one in claims if one.along_flow and not one.foreign(problem.loss, run.start)]
    by_itself = [one for one in found if case.is_row_by_row(one)]
    assert len(by_itself) >= 10 and len(by_itself) < len(found)
    monkeypatch.setattr(comparing, "_FEW", 10**9)
    evidence = Evidence(problem.loss, run, claims=claims)
    case = evidence.cases[0]
    for one in by_itself:
        assert not case.is_row_by_row(one)
        reads, _, differs = reads_the_end(one, evidence, case)
        assert not (reads or differs or depends_on_others(one, evidence)), one.id
        ours = case.panel.compared(one, problem.loss, case.padded)
        for rows, other in case.thinned(()):
            theirs = case.panel.compared(one, problem.loss, other)
            np.testing.assert_array_equal(theirs.slack[: rows.size], ours.slack[rows], err_msg=one.id)


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (lambda loss, flow: at_most(flow.models.u_minus1, 9.0), True),
        (lambda loss, flow: at_most(flow.models.u_minus1, 9.0, allowance=flow.way_to_go), False),
        (lambda loss, flow: at_most(flow.models.u_minus1 + flow.way_to_go, 9.0), False),
        (lambda loss, flow: at_most(flow.since[-1:], 9.0), False),
        (lambda loss, flow: at_most(flow.models.u_minus1 / flow.origin, 9.0), False),
        (lambda loss, flow: at_most(flow.models.u_minus1 / loss.task.covariance[0, 0], 9.0), True),
    ],
)
def test_what_a_flow_says_beside_its_rows_is_of_all_of_them(compare, expected, problem):
    run = problem.run()
    run = dataclasses.replace(run, counted=(jnp.ones(run.t.shape), run.t + 0.0))
    for way_to_go in (np.inf, jnp.asarray(0.1)):
        made = dataclasses.replace(run, way_to_go=way_to_go)
        assert comparing._is_row_by_row(compare, problem.loss, made) is expected


@pytest.mark.slow
def test_a_flow_of_many_weights_is_judged_alike(problem, monkeypatch):
    run, claims = problem.run(), [one for one in claims_about(problem, None) if ".lemma-" in one.id]
    quick = judge(claims, problem.loss, run)
    monkeypatch.setattr(comparing, "_FEW", 10**9)
    slow = judge(claims, problem.loss, run)
    for one, other in zip(quick, slow, strict=True):
        assert (one.verdict, one.until, one.cut, one.note) == (other.verdict, other.until, other.cut, other.note)
        assert (one.margin is None) == (other.margin is None)
        assert one.margin is None or one.margin == pytest.approx(other.margin, rel=1e-9, abs=1e-12)
