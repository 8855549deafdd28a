"""Margins a second of zhang2023's PL inequality at d = 10, beside a Python loop over scipy.

Problems are drawn from the claim's own space at d = 10, rank 10: covariance, context length, scale and start. Ours is
all that a search does for them, from the numbers of a problem to its margin, warm. The loop builds the same problem in
NumPy, integrates (5.4) by BDF from the same start to the same end at the same tolerance, 1e-7, and takes the least
ratio.

    python benchmarks/search_rate.py        # or --quick
"""

import pathlib
import sys
import time

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))  # to be run as a file, too
from benchmarks.measurements import Measurement, measure

D = 10
CLAIM = "zhang2023.lemma-5.4.pl"


def rates(quick: bool) -> list[Measurement]:
    """Both rates on the same problems, how far the margins differ, and the cost of a derivative."""
    import scipy.integrate

    import flowsim
    import flowsim.papers.zhang2023.conditions
    from flowsim.experiments.search.points import Sampler
    from flowsim.experiments.search.screening import FLOW_RTOL, Screen, built

    claim = flowsim.find_claims(flowsim.ALL_CLAIMS, CLAIM)[0]
    only = {"task.covariance.dimension": flowsim.Whole(D, D), "init.rank": flowsim.Whole(D, D)}
    # Below the scale condition, which leaves only starts that meet all hypotheses.
    spaces = tuple(space.over(only | {"init.scale": flowsim.Real(1e-3, 1e-2)}) for space in claim.spaces)
    screen, sampler = Screen(claim, spaces), Sampler(spaces[0], 0, 0)
    points = sampler.draw(0, 64 if quick else 1024)
    screen.margins(points[:32])
    begin = time.perf_counter()
    margins = screen.margins(points)
    ours = len(points) / (time.perf_counter() - begin)

    def loop(point):
        """The margin, as a user would compute it."""
        values = point.values
        condition, scale = values["task.covariance.condition"], values["task.covariance.scale"]
        N, sigma = values["task.context_length"], values["init.scale"]
        lam = scale * condition ** -np.linspace(0, 1, D)
        gamma = lam * (1 + 1 / N) + lam.sum() / N
        _, start, run = built(spaces[0], values)
        end = float(run(True).t[-1])
        Q = np.asarray(basis(D))
        U0 = Q.T @ np.asarray(start.U11) @ Q
        begin = time.perf_counter()
        a = (gamma * lam)[:, None] * lam[None, :]
        b = lam**2

        def field(t, y):
            U, u = y[:-1].reshape(D, D), y[-1]
            dU = -(u**2) * a * U + u * np.diag(b)
            return np.append(dU.ravel(), b @ np.diag(U) - u * np.sum(a * U**2))

        solution = scipy.integrate.solve_ivp(
            field, (0, end), np.append(U0.ravel(), float(start.u_minus1)), "BDF", rtol=FLOW_RTOL, atol=FLOW_RTOL * sigma
        )
        U, u = solution.y[:-1].T.reshape(-1, D, D), solution.y[-1]
        residual = u[:, None, None] * U - np.diag(b / np.diag(a))
        excess = np.sum(a * residual**2, axis=(1, 2)) / 2
        slopes = (
            np.sum((u[:, None, None] * a * residual) ** 2, axis=(1, 2)) + np.sum(a * residual * U, axis=(1, 2)) ** 2
        )
        used = excess > 1e-10 * excess[0]
        # mu of (5.7), by the formula of the claim itself.
        exact = built(spaces[0], values)[0]
        assert isinstance(exact, flowsim.LinearAttentionLoss)
        mu = float(flowsim.papers.zhang2023.conditions.pl_constant(exact.task, start))
        return np.min(slopes[used] / excess[used]) / mu - 1, time.perf_counter() - begin

    count = 2 if quick else 16
    pairs = [loop(point) for point in points[:count]]
    theirs = count / sum(seconds for _, seconds in pairs)
    apart = max(abs(m.margin - one) / abs(one) for m, (one, _) in zip(margins, pairs, strict=False))
    screen.gradient(points[0])
    begin = time.perf_counter()
    for point in points[:count]:
        screen.gradient(point)
    gradient = (time.perf_counter() - begin) / count
    return [
        Measurement("margins a second, over the loop's", ours / theirs, "x", "at least", 100.0,
                    f"{ours:.0f} and {theirs:.2f} a second"),
        Measurement("largest difference of the margins", apart, "", "at most", 5e-2,
                    f"over {count} problems; each is the least over its solver's own times"),
        Measurement("a margin with all its derivatives", gradient * 1e3, "ms", "at most", 1e3 / theirs,
                    "asked: what the loop takes for the margin alone"),
    ]  # fmt: skip


def basis(d: int):
    """The eigenvectors of the covariance, largest eigenvalue first."""
    import jax

    return jax.random.orthogonal(jax.random.key(0), d)


def main(quick: bool = False) -> list[Measurement]:
    """Measure, and write the table."""
    return measure((rates,), quick, "search_rate", "Margins a second", __doc__ or "")


if __name__ == "__main__":
    main("--quick" in sys.argv)
