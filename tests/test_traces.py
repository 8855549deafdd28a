"""Traces that flows share: they are made once, and never used for a flow or a claim that differs in what they hold."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import flowsim
from flowsim._core.checks import is_concrete
from flowsim._core.functions import Shared
from flowsim.claims.evidence import traces

FACTOR = 2.0


class Weights(eqx.Module):
    x: jax.Array


class Bowl(eqx.Module):
    """The residual of a bowl whose steepness is an array, and whose power is not."""

    steepness: jax.Array
    power: int = eqx.field(static=True)

    def __call__(self, model):
        return jnp.sum(self.steepness * model.x**self.power) / 2


def closed_over(factor):
    return lambda model: factor * jnp.sum(jnp.asarray([1.0, 3.0]) * model.x**2) / 2


def flow_of(bowl, start=(1.0, 0.5), **settings):
    loss = flowsim.FunctionLoss(Bowl(jnp.asarray(bowl), 2) if isinstance(bowl, list) else bowl, minimum=0.0)
    asked = {"t1": 1.0, **settings}
    return loss, flowsim.gradient_flow(loss, Weights(jnp.asarray(start)), **asked)


def along(flow):
    return flowsim.at_least(flow.grad_norm_sq, FACTOR * flow.excess)


def speed(flow):
    return flowsim.at_most(jnp.sum(flow.velocity.x**2, axis=1), FACTOR * flow.loss)


def at_the_limit(flow):
    value, allowance = flowsim.limit(flow, lambda model: jnp.sum(model.x**2))
    return flowsim.at_most(value, FACTOR * 1e-3, size=1.0, allowance=allowance)


def declared(sides, traced=None):
    """A claim of these sides, which counts how often they are traced."""

    def compare(flow):
        """$a \\le b$"""
        if traced is not None and not is_concrete(flow.t):
            traced.append(flow.t.shape)
        return sides(flow)

    return flowsim.claim("mine.a", "notes")(compare)


def judged(claim, *flow):
    return dataclasses.replace(flowsim.check(claim, *flow), constants={})


@pytest.fixture
def alone(monkeypatch):
    """A function that judges with no trace of another flow."""

    def judge(*arguments):
        with monkeypatch.context() as patched:
            patched.setattr(traces, "_SHARED", Shared(0))
            return judged(*arguments)

    return judge


def test_flows_of_the_same_shape_share_traces(monkeypatch):
    monkeypatch.setattr(traces, "_SHARED", Shared(64))
    count = []
    claim = declared(along, count)
    judged(claim, *flow_of([1.0, 3.0]))
    first = len(count)
    judged(claim, *flow_of([1.0, 3.0], start=(2.0, 1.0)))
    assert len(count) == first > 0


@pytest.mark.parametrize(
    "sides, one, other",
    [
        # In a time that is scaled by the factor, these flows are the same, and have as many rows.
        (along, flow_of([1.0, 3.0]), flow_of([4.0, 12.0], t1=0.25)),
        (along, flow_of(closed_over(1.0)), flow_of(closed_over(4.0), t1=0.25)),
        (along, flow_of([1.0, 3.0]), flow_of(Bowl(jnp.asarray([1.0, 3.0]), 4))),
        (speed, flow_of([1.0, 3.0]), flow_of([4.0, 12.0], t1=0.25)),
        (at_the_limit, flow_of([1.0, 3.0], t1=3.0), flow_of([1.0, 3.0], t1=3.0, start=(2.0, 1.0))),
    ],
    ids=["number", "closure", "static", "field", "end"],
)
def test_a_verdict_does_not_depend_on_flows_that_were_judged_before(sides, one, other, monkeypatch, alone):
    monkeypatch.setattr(traces, "_SHARED", Shared(64))
    claim = declared(sides)
    judged(claim, *one)
    assert judged(claim, *other) == alone(claim, *other)


def test_a_number_that_a_claim_looks_up_is_looked_up_again(monkeypatch, alone):
    given = flow_of([1.0, 3.0])
    assert judged(declared(along), *given).verdict == "holds"
    monkeypatch.setitem(globals(), "FACTOR", 2.1)
    changed = declared(along)
    assert judged(changed, *given).verdict == "violated" and judged(changed, *given) == alone(changed, *given)


def test_what_is_kept_is_bounded_and_holds_what_was_asked_for_last():
    shared, made = Shared(2), []

    def get(*of):
        return shared.get(of, lambda: (made.append(of) or len(made), True))

    assert [get("a"), get("b"), get("a"), get("c"), get("a"), get("b")] == [1, 2, 1, 3, 1, 4]
    assert shared.get(("d",), lambda: (0, False)) == 0 and shared.get(("d",), lambda: (1, True)) == 1


def test_an_object_without_a_value_is_not_kept():
    shared = Shared(8)
    assert [shared.get((object(),), lambda n=n: (n, True)) for n in range(3)] == [0, 1, 2]
