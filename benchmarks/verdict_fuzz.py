"""Verdicts on random problems beside what is true there, which other means say; no verdict may be false.

    python benchmarks/verdict_fuzz.py [--problems 3000] [--seed 0] [--family one-weight] [--keep]

Each problem is drawn with a statement that is true and one that is false by little, and both are judged after a run
that ends at a stop, at a loose stop or at a short time. What is true is known without flowsim:

- one-weight: a prompt of one dimension. With s = u + U and m = u - U the product sm is conserved, and s^2 follows a
  logistic equation, so that every number along the flow has a closed form;
- one-layer: several dimensions, condition to 1e6. The limit is that which balance leaves, in rationals of the spectrum;
  values at a time are those of SciPy's DOP853;
- factors: a user's loss (1/2) sum_i (prod_j w_ij - 1)^2, with its minimum told or not. What is conserved leaves the
  limit, which bisection finds;
- quadratic: a user's loss (1/2) sum_i k_i x_i^2, condition to 1e6, solved by exponentials;
- theorems: statements of the papers that nobody has seen fail, at random points of the spaces that they speak of. These
  have only true statements.

"unresolved" is never false, and told by its cause. Exits with status 1 if any verdict is false.
"""

import argparse
import collections
import dataclasses
import json
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.integrate
import scipy.optimize
from jaxtyping import Array, PyTree
from tqdm import tqdm

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
import flowsim
import flowsim.losses
from benchmarks.measurements import DOCS, ledger
from flowsim import Claim, FunctionLoss, LinearAttention, LinearAttentionLoss, LinearRegression, Relation, Stop
from flowsim.claims import Evidence, judge_on
from flowsim.claims.claim import Comparison, at_least, at_most, equal
from flowsim.claims.spaces import Space
from flowsim.cli.prepare import prepare_jax
from flowsim.experiments.audit import evidence_of
from flowsim.experiments.search.points import Sampler
from flowsim.flow.gradient_flow import start_alone
from flowsim.papers import ALL_CLAIMS
from flowsim.problem import ProblemError, spec_of

RESULTS = pathlib.Path(__file__).parent / "results"
_LITTLE = 1e-5  # by which a false inequality is false
_RESOLVED = 2e-4  # by which a false identity is false: one that is known no better than to 1e-4 is not judged
_SECONDS = 20.0  # for a flow
_CASES = 200


class Statement(eqx.Module):
    """A statement about a flow with a number in it, so that one program serves every number."""

    number: Array
    compare: Callable = eqx.field(static=True)

    def __call__(self, loss, flow) -> Comparison:
        return self.compare(flow, self.number)

    def claim(self, name: str, relation: Relation) -> Claim:
        """The statement as a claim."""
        return Claim(f"fuzz.{name}", "a random problem", name, self, relation=relation)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A loss and a start, how far the flow goes, and statements about it once it has been solved.

    statements: trajectory -> pairs of a claim and whether it is true.
    """

    loss: flowsim.losses.AbstractPopulationLoss
    start: PyTree
    how: dict
    statements: Callable[[flowsim.Trajectory], list[tuple[Claim, bool]]]


def _gradient_dominates(flow, number):
    return at_least(flow.grad_norm_sq, number * flow.excess, promised=flow.excess > 0)


def _decays(flow, number):
    return at_most(
        flow.excess, flow.excess[0] * jnp.exp(-number * flow.t), size=flow.excess[0] * jnp.exp(-number * flow.t)
    )


def _size(model):
    return jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(model)))


def _ends_with(flow, number):
    return equal(_size(flow.end)[None], number, jnp.abs(number))


def _tends_to(flow, number):
    return equal(_size(flow.end)[None], number, jnp.abs(number), allowance=flow.way_to_go)


def _reaches_the_minimum(flow, number):
    lost = jnp.sqrt(flow.grad_norm_sq[-1:]) * flow.way_to_go
    return at_most(flow.loss[-1:], number, size=flow.loss[0], allowance=lost)


def _is_at_the_minimum(flow, number):
    return at_most(flow.excess[-1:], number, size=flow.excess[0])


def _end(flow: flowsim.Trajectory, how: dict, there: bool) -> list[tuple[Claim, bool]]:
    """A run that ends by itself ends at the minimum, if that is where its flow goes."""
    claim = Statement(1e-6 * flow.excess[0], _is_at_the_minimum).claim("end", Relation.INEQUALITY)
    return [(claim, there)] if not how and np.isfinite(float(flow.excess[0])) else []


def _minimum(value: float) -> Claim:
    """The loss tends to a value or to less."""
    return Statement(jnp.asarray(value), _reaches_the_minimum).claim("minimum", Relation.INEQUALITY)


def _pair(name: str, compare: Callable, exact: float, relation: Relation, raising: float) -> list[tuple[Claim, bool]]:
    """A statement with a number that is right, and with one that is wrong; ``raising``: the sign of what breaks it."""
    little = _RESOLVED if relation is Relation.IDENTITY else _LITTLE
    right = exact if relation is Relation.IDENTITY else exact * (1 - raising * little)
    wrong = exact * (1 + raising * little)
    make = lambda number: Statement(jnp.asarray(float(number)), compare).claim(name, relation)
    return [(make(right), True), (make(wrong), False)]


def _how(rng: np.random.Generator, timescale: float) -> dict:
    """One of the ways to end a run."""
    kind = rng.integers(4)
    if kind == 0:
        return {"t1": timescale * 10 ** rng.uniform(-2, 1)}
    if kind == 1:
        return {"stop": Stop(excess=10 ** rng.uniform(-6, -1), grad_norm=10 ** rng.uniform(-6, -1))}
    return {}


def one_weight(rng: np.random.Generator) -> Problem:
    """L = (a/2) (u U)^2 - b u U + .. in closed form: x = s^2 has dx/dt = -(a/2) (x - x_+) (x - x_-)."""
    lam, length = 10 ** rng.uniform(-3, 3), int(10 ** rng.uniform(0, 6))
    loss = LinearAttentionLoss(LinearRegression([[lam]], length))
    a, b = (lam + 2 * lam / length) * lam**2, lam**2
    scale = 10 ** rng.uniform(-8, 3)
    u = scale * (1.0 if rng.random() < 0.3 else 10 ** rng.uniform(-2, 2)) * rng.choice([1, 1, -1])
    U = scale * (1.0 if rng.random() < 0.3 else 10 ** rng.uniform(-2, 2)) * rng.choice([1, 1, -1])
    s, m = u + U, u - U
    start = LinearAttention([[U]], u)
    middle = 2 * b / a
    c = s * m
    high = middle + np.hypot(middle, c)
    low = -(c**2) / high if high > 0 else 0.0
    how = _how(rng, 1 / (a * (high - low)))

    def square(t):
        if s == 0 or t == np.inf:
            return 0.0 if s == 0 else high
        # Every term is positive, so that nothing cancels: with high much less than s^2 the ratio of the logistic
        # equation is 1 to nine digits.
        exponent = -(a / 2) * (high - low) * t
        gone, left = -np.expm1(exponent), np.exp(exponent)
        return (s**2 * (high - low * left) - high * low * gone) / ((s**2 - low) * gone + (high - low) * left)

    def curvature(x):
        return a * (x + (c**2 / x if x > 0 else m**2))

    def norm(x):
        return np.sqrt((x + (c**2 / x if x > 0 else 0.0)) / 2)

    def statements(flow):
        end = float(flow.t[-1])
        x0, x1 = s**2, square(end)
        turn = [abs(c)] if min(x0, x1) < abs(c) < max(x0, x1) else []
        sharp = min(curvature(x) for x in (x0, x1, *turn))
        found = []
        if s != 0:
            found += _pair("gradient dominance", _gradient_dominates, sharp, Relation.INEQUALITY, 1.0)
            found += _pair("value at a time", _ends_with, norm(x1), Relation.IDENTITY, 1.0)
        limit = norm(square(np.inf)) if s != 0 else 0.0
        if limit > 0:
            found += _pair("limit", _tends_to, limit, Relation.IDENTITY, 1.0)
        # From s = 0 the flow goes to the saddle, whose excess is b^2/(2a).
        left = 0.0 if s != 0 else b**2 / (2 * a)
        threshold = 1e-6 * float(flow.excess[0])
        there = left <= threshold
        return [*found, (_minimum(float(loss.minimum) + threshold), there), *_end(flow, how, there)]

    return Problem(loss, start, how, statements)


def one_layer(rng: np.random.Generator) -> Problem:
    """U in the eigenbasis; u^2 - |U|^2 = c is conserved, and u U -> 1/gamma."""
    d, length = int(rng.choice([2, 3])), int(10 ** rng.uniform(0, 6))
    lam = 10 ** rng.uniform(-2, 2) * 10 ** -np.append(rng.uniform(0, rng.choice([1, 6]), d - 1), 0.0)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0] if rng.random() < 0.5 else np.eye(d)
    loss = LinearAttentionLoss(LinearRegression(basis * lam @ basis.T, length))
    lam = np.linalg.eigvalsh(np.asarray(loss.task.covariance))
    scale = 10 ** rng.uniform(-8, 1)
    factor = rng.standard_normal((d, d))
    shape = factor @ factor.T / np.linalg.norm(factor @ factor.T)
    balanced = rng.random() < 0.5
    u = scale * (1.0 if balanced else 10 ** rng.uniform(-2, 2))
    start = LinearAttention(scale * shape, u)
    gamma = lam + (lam + lam.sum()) / length
    c = u**2 - scale**2 * np.sum(shape**2)
    inverse = float(np.sum(gamma**-2.0))
    root = np.sqrt(c**2 + 4 * inverse)
    limit = np.sqrt(root)  # u^2 + |U|^2 at u^2 = (c + root)/2
    how = _how(rng, 1 / (gamma[-1] * lam[-1] ** 2 * limit**2))
    stiff = lam[-1] > 30 * lam[0] or "t1" not in how

    def field(t, y):
        U, u = y[:-1].reshape(d, d), y[-1]
        residual = u * gamma[:, None] * U - np.eye(d)
        weight = np.outer(lam, lam) * residual
        return np.append(-u * weight, -np.sum(weight * U))

    def statements(flow):
        found = _pair("limit", _tends_to, limit, Relation.IDENTITY, 1.0)
        found += [(_minimum(float(loss.minimum) + 1e-6 * float(flow.excess[0])), True), *_end(flow, how, True)]
        at_start = float(flow.grad_norm_sq[0] / flow.excess[0])
        found += _pair("gradient dominance", _gradient_dominates, at_start, Relation.INEQUALITY, 1.0)[1:]
        if stiff:
            return found
        vectors = np.linalg.eigh(np.asarray(loss.task.covariance))[1]
        y0 = np.append((vectors.T @ (scale * shape) @ vectors).reshape(-1), u)
        times = np.geomspace(1e-6, 1.0, 400) * float(flow.t[-1])
        # In units of the start, so that absolute errors are relative ones.
        scaled = lambda t, y: field(t, u * y) / u
        solved = scipy.integrate.solve_ivp(scaled, (0, times[-1]), y0 / u, "DOP853", times, rtol=1e-13, atol=1e-15)
        if not solved.success:
            return found
        states = u * solved.y.T
        found += _pair("value at a time", _ends_with, float(np.linalg.norm(states[-1])), Relation.IDENTITY, 1.0)
        residuals = states[:, -1, None, None] * gamma[:, None] * states[:, :-1].reshape(-1, d, d) - np.eye(d)
        excess = 0.5 * np.sum(np.outer(lam / gamma, lam) * residuals**2, axis=(1, 2))
        slopes = np.sum(np.asarray([field(0.0, y) for y in states]) ** 2, axis=1)
        if np.min(excess) > 1e-10 * np.max(excess):
            least = np.min(slopes / excess)
            found += _pair("gradient dominance", _gradient_dominates, least, Relation.INEQUALITY, 1.0)[1:]
        return found

    return Problem(loss, start, how, statements)


class Factors(eqx.Module):
    """w: (rows, factors)."""

    w: Array


def factors(rng: np.random.Generator) -> Problem:
    """w_ij^2 - w_ik^2 is conserved, and every product of a row with positive factors tends to 1."""
    rows, count = int(rng.choice([1, 2])), int(rng.choice([2, 3]))
    scale = 10 ** rng.uniform(-6 if count == 2 else -3, 0.5)
    shape = np.ones((rows, count)) if rng.random() < 0.4 else rng.uniform(0.2, 1.0, (rows, count))
    w = scale * shape * np.append(1.0, rng.uniform(0.2, 1.0, rows - 1))[:, None]
    known = rng.random() < 0.6
    loss = FunctionLoss(_products, minimum=0.0 if known else None)
    how = _how(rng, scale ** (2 - count))
    limit = np.sqrt(sum(np.sum(_balanced_row(row)) for row in w))

    def statements(flow):
        found = _pair("limit", _tends_to, limit, Relation.IDENTITY, 1.0)
        found += [(_minimum(1e-6 * float(flow.loss[0])), True), *_end(flow, how, True)]
        if known:
            at_start = float(flow.grad_norm_sq[0] / flow.excess[0])
            found += _pair("gradient dominance", _gradient_dominates, at_start, Relation.INEQUALITY, 1.0)[1:]
        return found

    return Problem(loss, Factors(jnp.asarray(w)), how, statements)


def _products(model: Factors):
    return 0.5 * jnp.sum((jnp.prod(model.w, axis=1) - 1) ** 2)


def _balanced_row(row: np.ndarray) -> np.ndarray:
    """The squares at the limit: those at the start and one number more, whose product is 1."""
    least = np.min(row**2)
    offsets = row**2 - least
    bracket = {"bracket": (-80.0, 10.0), "xtol": 1e-15, "rtol": 1e-15}
    found = scipy.optimize.root_scalar(lambda z: np.prod(offsets + np.exp(z)) - 1, **bracket)
    return offsets + np.exp(found.root)


class Parabola(eqx.Module):
    """(1/2) sum_i k_i x_i^2."""

    curvatures: Array

    def __call__(self, model: "Point"):
        return 0.5 * jnp.sum(self.curvatures * model.x**2)


class Point(eqx.Module):
    """x: (d,)."""

    x: Array


def quadratic(rng: np.random.Generator) -> Problem:
    """x_i(t) = x_i(0) exp(-k_i t)."""
    d = int(rng.choice([2, 4]))
    k = 10 ** rng.uniform(-2, 2) * 10 ** -rng.uniform(0, rng.choice([1, 6]), d)
    x = 10 ** rng.uniform(-8, 3) * rng.standard_normal(d)
    loss = FunctionLoss(Parabola(jnp.asarray(k)), minimum=0.0 if rng.random() < 0.7 else None)
    how = _how(rng, 1 / k.max())

    def statements(flow):
        T = float(flow.t[-1])
        found = []
        with np.errstate(under="ignore"):
            then = x * np.exp(-k * T)
            excess = lambda y: 0.5 * np.sum(k * y**2)
            if np.isfinite(float(flow.excess[0])) and excess(then) > 1e-290:
                # Both ratios fall with time: by the inequality of Cauchy and Schwarz, and since log L is convex.
                sharp = np.sum((k * then) ** 2) / excess(then)
                found += _pair("gradient dominance", _gradient_dominates, sharp, Relation.INEQUALITY, 1.0)
                rate = -np.log(excess(then) / excess(x)) / T
                found += _pair("decay", _decays, rate, Relation.INEQUALITY, 1.0)
            if np.linalg.norm(then) > 1e-6 * np.linalg.norm(x):
                found += _pair("value at a time", _ends_with, float(np.linalg.norm(then)), Relation.IDENTITY, 1.0)
        little = 1e-9 * float(flow.loss[0])
        return [*found, (_minimum(little), True), (_minimum(-little), False), *_end(flow, how, True)]

    return Problem(loss, Point(jnp.asarray(x)), how, statements)


FAMILIES = {"one-weight": one_weight, "one-layer": one_layer, "factors": factors, "quadratic": quadratic}
_SHARES = {"one-weight": 0.25, "one-layer": 0.2, "factors": 0.1, "quadratic": 0.15, "theorems": 0.3}


def constructed(family: str, count: int, seed: int) -> Iterator[dict]:
    """One true statement and one false statement about each problem of a family, with the verdicts."""
    for index in range(count):
        rng = np.random.default_rng([seed, sorted(FAMILIES).index(family), index])
        problem = FAMILIES[family](rng)
        flow = flowsim.gradient_flow(problem.loss, problem.start, budget_seconds=_SECONDS, **problem.how)
        evidence = Evidence(problem.loss, flow)
        found = problem.statements(flow)
        if index % _CASES == _CASES - 1:
            jax.clear_caches()  # each program holds memory maps, of which a process has 65,530
        for truth in (True, False):
            chosen = [claim for claim, true in found if true is truth]
            if chosen:
                claim = chosen[rng.integers(len(chosen))]
                yield {"problem": index, "true": truth} | _told(judge_on(claim, evidence))


def _told(verdict: flowsim.Verdict) -> dict:
    return {
        "statement": verdict.id,
        "form": verdict.form,
        "verdict": str(verdict.verdict),
        "note": verdict.note,
        "margin": verdict.margin,
        "floor": verdict.floor,
    }


def _true_theorems() -> list[Claim]:
    """Claims of the ledger that no problem breaks."""
    sections = re.findall(r"^## (\S*) \((\w*)\)\n(.*?)(?=^## |^<!-- |\Z)", ledger(), re.MULTILINE | re.DOTALL)
    broken = {(identifier, form) for identifier, form, body in sections if "violated" in body}
    broken |= {tuple(path.stem.rsplit("-", 1)) for path in (DOCS / "counterexamples").iterdir()}
    known = {(identifier, form) for identifier, form, _ in sections}
    return [claim for claim in ALL_CLAIMS if (claim.id, claim.form) in known - broken]


def theorems(count: int, seed: int) -> Iterator[dict]:
    """Statements that nobody has seen fail, each at points of its spaces."""
    claims = _true_theorems()
    each = -(-count // len(claims))
    for number, claim in enumerate(claims):
        space = claim.spaces[number % len(claim.spaces)]
        points = Sampler(space, 0, seed).draw(0, each)
        for index, point in enumerate(points):
            try:
                evidence = _evidence_at(claim, space, point.values)
            except ProblemError as error:
                print(f"{claim.id} at {dict(point.values)}: {error}", file=sys.stderr)
                continue
            yield {"problem": f"{claim.id} {index}", "true": True} | _told(judge_on(claim, evidence))
        jax.clear_caches()


def _evidence_at(claim: Claim, space: Space, values: Mapping[str, Any]) -> Evidence:
    """The problem at a point of a space, with its flow where the claim speaks of one."""
    if space.make is None:
        spec = spec_of(space.tables(values), [f"flow.budget_seconds={_SECONDS}"])
        return evidence_of(spec.build(), claim.along_flow)
    loss, start = space.make(**values)
    if not claim.along_flow:
        return Evidence(loss, start_alone(loss, start))
    return Evidence(loss, flowsim.gradient_flow(loss, start, budget_seconds=_SECONDS))


_CAUSES = {
    "way still to go": "no bound is known of the way to the limit",
    "did not finish": "a solve did not finish",
    "did not survive": "a violation did not survive a more accurate solve",
    "not finite": "a side is not finite",
    "energy balance": "the energy balance is off",
    "side is not known": "a side is not known",
}


def _cause(row: Mapping[str, Any]) -> str:
    return next((cause for part, cause in _CAUSES.items() if part in row["note"]), "the margin is below its error")


def _is_false(row: Mapping[str, Any]) -> bool:
    return row["verdict"] == ("violated" if row["true"] else "holds")


def summary(rows: Mapping[str, list[dict]]) -> str:
    """What was found by family, the unresolved by cause, and every false verdict."""
    lines = ["| family | problems | verdicts | right | unresolved | not applicable or vacuous | false |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for family, found in rows.items():
        right = sum(row["verdict"] == ("holds" if row["true"] else "violated") for row in found)
        open_ = sum(row["verdict"] == "unresolved" for row in found)
        false = sum(map(_is_false, found))
        problems = len({row["problem"] for row in found})
        rest = len(found) - right - open_ - false
        lines.append(f"| {family} | {problems} | {len(found)} | {right} | {open_} | {rest} | {false} |")
    everything = [row for found in rows.values() for row in found]
    causes = collections.Counter(_cause(row) for row in everything if row["verdict"] == "unresolved")
    lines += ["", "| why unresolved | verdicts | share of all |", "|---|---|---|"]
    lines += [f"| {cause} | {n} | {n / len(everything):.1%} |" for cause, n in causes.most_common()]
    false = [(family, row) for family, found in rows.items() for row in found if _is_false(row)]
    lines += ["", f"{len(false)} false verdicts."]
    lines += [f"- {family}, problem {row['problem']}: {json.dumps(row)}" for family, row in false]
    return "\n".join(lines)


def _keep(found: Mapping[str, dict]) -> None:
    """Replace what the results have of these families, so that each can be run by a process of its own."""
    file = RESULTS / "verdict_fuzz.json"
    everything = (json.loads(file.read_text()) if file.exists() else {}) | dict(found)
    kept = {family: everything[family] for family in _SHARES if family in everything}
    file.write_text(json.dumps(kept, indent=0) + "\n")
    about = str(__doc__).partition("    python")[0].strip()
    seeds = ", ".join(f"{family} {one['seed']}" for family, one in kept.items())
    page = summary({family: one["rows"] for family, one in kept.items()})
    text = f"# Verdicts on random problems\n\n{about}\n\nSeeds: {seeds}.\n\n{page}\n"
    (RESULTS / "verdict_fuzz.md").write_text(text)


def main(arguments: list[str] | None = None) -> int:
    """Print every false verdict as it is found, then the summary, which a whole run keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=3200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=[*_SHARES], help="only these")
    parser.add_argument(
        "--keep", action="store_true", help="write what was found into benchmarks/results/verdict_fuzz.md and .json"
    )
    asked = parser.parse_args(arguments)
    prepare_jax()
    rows: dict[str, list[dict]] = {}
    for family in [asked.family] if asked.family else _SHARES:
        begun = time.monotonic()
        count = asked.problems if asked.family else round(_SHARES[family] * asked.problems)
        drawn = theorems(count, asked.seed) if family == "theorems" else constructed(family, count, asked.seed)
        rows[family] = []
        for row in tqdm(drawn, desc=family, total=count if family == "theorems" else 2 * count):
            rows[family].append(row)
            if _is_false(row):
                tqdm.write(f"FALSE {family} {row}")
        print(f"{family}: {len(rows[family])} verdicts, {time.monotonic() - begun:.0f} s", flush=True)
    print(summary(rows))
    if asked.keep:
        _keep({family: {"seed": asked.seed, "rows": found} for family, found in rows.items()})
    return int(any(_is_false(row) for found in rows.values() for row in found))


if __name__ == "__main__":
    sys.exit(main())
