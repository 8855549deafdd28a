"""How far random covariances keep a trained layer from linear regression: one third, and where it comes from.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), section 4.3: with variances Exponential(1)
and long prompts the trained layer predicts <w, x_query>/3 on average.

**What it shows:** as N grows the trained layer shrinks predictions by E[lambda^2] E[lambda]/E[lambda^3]. For Gamma(k)
variances that is k/(k + 2): one third at k = 1, and 1 only as the variances cease to be random.

**What would falsify it:** a factor that does not tend to k/(k + 2), or "violated".
"""

import pathlib

import jax
import numpy as np

import flowsim
from flowsim import plots
from flowsim.covariance_laws import DiagonalLaw, Gamma
from flowsim.initialization import scaled_identity

DIMENSION = 3
CLAIM = "zhang2023.sec-4.3.one-third"


def factor(shape: float, context_length: float) -> tuple[float, flowsim.Verdict]:
    """The mean factor before <w, x_query> at the end of the flow, and the verdict on the paper's third."""
    task = flowsim.RandomCovarianceRegression(DiagonalLaw(Gamma(np.full(DIMENSION, shape), shape)), context_length)
    loss = flowsim.RandomCovarianceLoss(task)
    trajectory = flowsim.gradient_flow(loss, scaled_identity(0.1, DIMENSION))
    verdict = flowsim.judge(flowsim.find_claims(flowsim.ALL_CLAIMS, CLAIM), loss, trajectory)[0]
    return verdict.constants["factor"], verdict


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[float, list[tuple[float, flowsim.Verdict]]]:
    """Train on every law and length, and draw the factors beside k/(k + 2). Quick: fewer of both."""
    jax.config.update("jax_enable_x64", True)
    lengths = [20.0, np.inf] if quick else [*np.geomspace(10, 1e4, 7).round(), np.inf]
    found = {shape: [factor(shape, N) for N in lengths] for shape in ((1.0, 4.0) if quick else (0.5, 1.0, 4.0, 20.0))}

    path = pathlib.Path(out or ".", "zhang2023_one_third.png")
    with plots.drawing(path) as figure:
        axes = figure.add_subplot(xlabel="context length  $N$", ylabel="mean prediction over label")
        for index, (shape, points) in enumerate(found.items()):
            axes.semilogx(lengths[:-1], [value for value, _ in points[:-1]], "o-", color=f"C{index}", ms=3)
            axes.axhline(shape / (shape + 2), color=f"C{index}", ls="--")
            axes.text(lengths[-2], shape / (shape + 2) - 0.01, f"Gamma({shape:g})", ha="right", va="top")
    print(
        *(f"Gamma({k:g}), N = inf: {p[-1][0]:.6f}, k/(k + 2) = {k / (k + 2):.6f}" for k, p in found.items()), sep="\n"
    )
    print(found[1.0][-1][1], f"figure: {path.absolute()}", sep="\n")
    return found


if __name__ == "__main__":
    main()
