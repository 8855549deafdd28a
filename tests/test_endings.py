"""Proofs for all t by a ball at the end: known flows, planted falsehoods, and certificates that were changed."""

import json
import pathlib
import subprocess
import sys

import flint
import jax.numpy as jnp
import numpy as np
import pytest

import flowsim
from flowsim.claims.proofs import OpenError, ball, check, checker, ending, identities
from flowsim.claims.proofs.path import FollowedFlow
from flowsim.cli.main import main
from flowsim.problem import spec_of
from tests.helpers import quadratic

FOREVER = "proved for all t from 0"


def factors(target=1.0):
    """w -> (w_1 w_2 - target)^2 / 2, constant along (w_1, -w_2), with a continuum of minima."""
    return flowsim.FunctionLoss(lambda w: (w[0] * w[1] - target) ** 2 / 2, minimum=0.0)


def along(slack):
    """A claim that something is never negative."""
    declare = flowsim.claim("mine.slack", "a test", statement="it is not negative")
    return declare(lambda flow: flowsim.at_least(slack(flow), 0.0, size=1.0))


below = lambda bound, k=0: along(lambda flow: bound - flow.models[:, k])


@pytest.fixture(scope="module")
def certificate():
    return flowsim.certify(below(1.01), factors(), jnp.asarray([0.5, 0.5]), t1=np.inf)


def sealed(document):
    return document | {"digest": ending.digest(document)}


# --- What is proved -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", [1.001, 1.5])
def test_a_bound_at_a_strict_minimum_is_proved_for_all_t(bound):
    found = flowsim.certify(below(bound), quadratic(1.0, -0.5), jnp.zeros(2), t1=np.inf)
    assert check(found) == FOREVER and found["end"]["fields"] == []


def test_a_bound_at_a_continuum_of_minima_is_proved_with_the_field_of_the_symmetry(certificate):
    assert check(certificate) == FOREVER
    (field,) = certificate["end"]["fields"]
    assert field == [[0, 0, "-1"], [1, 1, "1"]]


def test_the_end_is_where_the_conserved_difference_says():
    # w_1^2 - w_2^2 = c at w_1 w_2 = 1 gives w_1^2 = (c + (c^2 + 4)^(1/2)) / 2.
    start = jnp.asarray([2.0, 0.25])
    c = 4 - 1 / 16
    limit = ((c + (c * c + 4) ** 0.5) / 2) ** 0.5
    assert limit > 2
    assert check(flowsim.certify(below(limit + 0.01), factors(), start, t1=np.inf)) == FOREVER
    with pytest.raises(OpenError):
        flowsim.certify(below(limit - 0.01), factors(), start, t1=np.inf)


def test_rotations_between_two_matrices_are_found():
    target = jnp.asarray([[2.0, 0.5], [0.5, 1.0]])
    product = lambda w: w[:4].reshape(2, 2) @ w[4:].reshape(2, 2)
    loss = flowsim.FunctionLoss(lambda w: jnp.sum((product(w) - target) ** 2) / 2, minimum=0.0)
    start = jnp.asarray([0.5, 0.1, -0.2, 0.3, 0.4, 0.3, 0.1, 0.7])
    found = flowsim.certify(below(3.0), loss, start, t1=np.inf)
    assert check(found) == FOREVER
    assert len(found["end"]["fields"]) == 4  # the dimension of the invertible matrices between the two


def test_a_loss_that_is_no_polynomial_has_a_ball_without_fields():
    loss = flowsim.FunctionLoss(lambda w: jnp.exp(w[0]) - 2 * w[0], minimum=2 - 2 * np.log(2))
    assert check(flowsim.certify(below(0.7), loss, jnp.zeros(1), t1=np.inf)) == FOREVER


# --- What is not --------------------------------------------------------------------------------------------------


def test_what_is_true_until_a_time_and_false_later_is_not_proved():
    loss, start = quadratic(1.0), jnp.zeros(1)  # w = 1 - e^{-t}, which is .99 at t = 4.6
    assert check(flowsim.certify(below(0.99), loss, start, t1=4.0)) == "proved for all t from 0 to 4"
    with pytest.raises(OpenError, match=r"no proof for all t was found: the statement fails in the ball at the end"):
        flowsim.certify(below(0.99), loss, start, t1=np.inf)


def test_what_is_false_on_the_way_alone_is_not_proved():
    # w_2 - w_1 = e^{-t} - e^{-2t} is 1/4 at t = log 2 and tends to 0.
    loss = quadratic(0.0, 0.0)
    claim = lambda bound: along(lambda flow: bound - flow.models[:, 0] + flow.models[:, 1])
    with pytest.raises(OpenError, match="not shown at t = 0.6"):
        flowsim.certify(claim(0.2499), loss, jnp.ones(2), t1=np.inf)
    assert check(flowsim.certify(claim(0.2501), loss, jnp.ones(2), t1=np.inf)) == FOREVER


def test_sides_that_meet_in_the_limit_stay_open_and_those_a_billionth_apart_do_not():
    certify = lambda off: flowsim.certify(below(1 + off), quadratic(1.0), jnp.zeros(1), t1=np.inf)
    with pytest.raises(OpenError, match="may meet in the limit"):
        certify(0.0)
    assert check(certify(1e-9)) == FOREVER
    with pytest.raises(OpenError, match="fails in the ball"):
        certify(-1e-9)


def test_what_is_false_within_the_ball_alone_is_not_proved():
    # Of all the points of the ball the flow passes few, and the statement fails at some, which may be among them.
    dip = along(lambda flow: ((flow.models[:, 0] - 1.0) / 1e-6) ** 2 - 0.25)
    with pytest.raises(OpenError):
        flowsim.certify(dip, quadratic(1.0), jnp.zeros(1), t1=np.inf)


def test_of_the_time_nothing_is_known_at_the_end():
    for slack in (lambda flow: 1000 - flow.t, lambda flow: flow.t + 1):
        with pytest.raises(OpenError, match="its sides depend on the time"):
            flowsim.certify(along(slack), quadratic(1.0), jnp.zeros(1), t1=np.inf)


@pytest.mark.parametrize("start", [[0.5, -0.5], [0.0, 0.0]])
def test_a_flow_that_ends_at_a_saddle_has_no_ball(start, monkeypatch):
    monkeypatch.setattr(ball, "_TIMES", np.asarray([1.0, 8.0, 16.0]))
    with pytest.raises(OpenError, match="not seen to end in a ball"):
        flowsim.certify(below(3.0), factors(), jnp.asarray(start), t1=np.inf)


def test_a_flow_without_an_end_has_no_ball(monkeypatch):
    monkeypatch.setattr(ball, "_TIMES", np.asarray([1.0, 8.0, 16.0]))
    for loss in (lambda w: jnp.exp(-w[0]), lambda w: w[0] ** 4, lambda w: -(w[0] ** 2)):
        with pytest.raises(OpenError, match="not seen to end in a ball"):
            flowsim.certify(
                along(lambda flow: flow.models[:, 0] + 1), flowsim.FunctionLoss(loss), jnp.ones(1), t1=np.inf
            )


# --- The checker --------------------------------------------------------------------------------------------------


def places(document, path=()):
    """Every number and text in a document, by the way to it."""
    if isinstance(document, dict | list):
        for key, part in document.items() if isinstance(document, dict) else enumerate(document):
            yield from places(part, (*path, key))
    else:
        yield path


def changed(document, path, change):
    """A copy of a document with something changed in it."""
    found = json.loads(json.dumps(document))
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = change(inner[path[-1]])
    return found


def other(value):
    if value is None:
        return 1
    return (value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x") if isinstance(value, str) else value + 1


def test_a_change_anywhere_is_seen(certificate):
    everywhere = list(places(certificate))
    assert len(everywhere) > 100
    for path in everywhere:
        with pytest.raises(checker.RefusedError, match="digest|version"):
            check(changed(certificate, path, other))


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        (("end", "radius"), lambda x: "1p-40", "may leave the ball"),
        (("end", "radius"), lambda x: "2", "the curvature is not shown"),
        (("end", "radius"), lambda x: "-1", "."),
        (("end", "curvature"), lambda x: "3", "the curvature is not shown"),
        (("end", "curvature"), lambda x: "0", "the curvature is not shown"),
        (("end", "curvature"), lambda x: "-1", "the curvature is not shown"),
        (("end", "centre"), lambda x: ["11/10", "10/11"], "."),
        (("end", "centre"), lambda x: ["1"], "another number of weights"),
        (("end", "centre"), lambda x: ["0", "0"], "the curvature is not shown"),
        (("end", "fields"), lambda x: [], "the curvature is not shown"),
        (("end", "fields", 0, 0, 2), lambda x: "1", "not constant along a field"),
        (("end", "fields", 0, 0, 2), lambda x: "-1000000001/1000000000", "not constant along a field"),
        (("end", "fields", 0, 0, 1), lambda x: 1, "not constant along a field"),
        (("end", "fields", 0, 0, 0), lambda x: -2, "not whole numbers"),
        (("pieces",), lambda x: [], "."),
        (("pieces",), lambda x: x[:-1], "may leave the ball"),
        (("pieces",), lambda x: x[1:], "."),
        (("verdict",), lambda x: "refuted", "not refuted in the ball"),
        (("sides",), lambda x: json.loads(json.dumps(x).replace("101/100", "1/2")), "not proved in the ball"),
        (("start", "operations", 0, 2, 0), lambda x: "3/4", "may leave the tube"),
        (("loss",), lambda x: json.loads(json.dumps(x).replace('"1/2"', '"1/3"').replace('"2"', '"3"')), "."),
    ],
)
def test_what_is_forged_is_no_proof(certificate, path, change, message):
    with pytest.raises((checker.RefusedError, identities.RefusedError, AttributeError), match=message):
        check(sealed(changed(certificate, path, change)))


def test_a_digit_of_the_end_that_is_changed_is_still_a_proof_or_none(certificate):
    # A smaller curvature and a wider ball are as true; what is accepted has to be so, whatever the digit.
    for path in places(certificate["end"]):
        for change in (other, lambda x: f"{x}1" if isinstance(x, str) else x + 2):
            try:
                document = sealed(changed(certificate, ("end", *path), change))
                assert check(document) == FOREVER
            except (checker.RefusedError, identities.RefusedError, ValueError, IndexError):
                continue
            assert path[0] != "fields"
            with flint.ctx.workprec(128):
                end = ending.Ball(checker.Program(document["loss"]), document["end"])
                assert end.box[0].contains(1) and end.box[1].contains(1)  # the limit
                assert 0 < end.curvature < 2.1  # its curvature is 2 there


def test_a_saddle_is_not_curved_whatever_the_fields():
    loss = FollowedFlow(factors(), jnp.ones(2)).program
    fields = [[[0, 0, "1"], [1, 1, "-1"]]]
    end = {"centre": ["0", "0"], "radius": "1/100", "curvature": "1/100", "fields": fields}
    assert not ending.Ball(checker.Program(loss), end).is_curved()


def test_the_checker_imports_flint_and_the_other_two_alone_and_stands_alone(certificate, tmp_path):
    folder = pathlib.Path(ending.__file__).parent
    for name in ("ending", "checker", "identities"):
        text = (folder / f"{name}.py").read_text()
        (tmp_path / f"{name}.py").write_text(text)
        assert len(text.splitlines()) <= 400
    (tmp_path / "certificate.json").write_text(json.dumps(certificate))
    for place in (folder, tmp_path):
        command = [sys.executable, "-I", str(place / "ending.py"), str(tmp_path / "certificate.json")]
        found = subprocess.run(command, capture_output=True, text=True)
        assert (found.returncode, found.stdout) == (0, f"{FOREVER}\n")
    (tmp_path / "certificate.json").write_text(json.dumps(certificate | {"verdict": "refuted"}))
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 1 and found.stderr.startswith("not a proof: its digest")


OWN = """
import flowsim
import jax.numpy as jnp


def make():
    return flowsim.FunctionLoss(lambda w: (w[0] * w[1] - 1) ** 2 / 2, minimum=0.0), jnp.asarray([0.5, 0.25])


@flowsim.claim("mine.size", "notes", statement="a size")
def size(flow):
    return flowsim.at_most(flow.models[:, 0], 1.5)


@flowsim.claim("mine.rate", "notes", statement="a rate")
def rate(flow):
    return flowsim.at_most(flow.excess, 2 * jnp.exp(-0.1 * flow.t) * flow.excess[0])
"""


@pytest.mark.slow
def test_a_run_and_the_commands_say_for_all_t(tmp_path, capfd):
    (tmp_path / "own.py").write_text(OWN)
    own, out = f"{tmp_path / 'own.py'}", tmp_path / "certificate.json"
    assert main(["certify", f"{own}:size", f"{own}:make", "--until", "inf", "--out", str(out)]) == 0
    assert "mine.size [printed]: proved for all t\n" in capfd.readouterr().out
    assert main(["verify", str(out)]) == 0
    assert FOREVER in capfd.readouterr().out
    problem = spec_of({"make": f"{own}:make", "flow": {"t1": 4.0}}).build()
    for resume in (False, True):
        size, rate = flowsim.run(problem, tmp_path / "out", certify=True, resume=resume).verdicts
        assert (size.proved_until, rate.proved_until) == (np.inf, 4.0)
        assert size.in_words().endswith("proved for all t") and rate.in_words().endswith("proved until t = 4")
    assert check(json.loads((tmp_path / "out" / "certificates" / "mine.size.json").read_text())) == FOREVER
