"""Figure 1 of zhang2023: linear attention exactly at every length, and least squares, under covariate shift.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Figure 1, (4.13), appendix E.

**What it shows:** the error of linear attention trained at N = 40, 70, 100, inf on one covariance (dotted) or on
Exponential(1) variances (solid), over that of predicting zero, on M examples with variances c times as large. At c = 4
and 9 it is worse than zero. Bands: 90% bootstrap intervals of the literal model (N = inf) and least squares (black).

**What would falsify it:** an exact curve away from the band of its own literal model.
"""

import functools
import pathlib

import jax
import numpy as np

import flowsim
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.prompt_risk import zero_predictor_error
from flowsim.tasks import sampling
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma

D, LENGTHS = 20, (40, 70, 100, np.inf)


def fixed(length: float) -> flowsim.LinearRegression:
    """Prompts with the identity covariance."""
    return flowsim.LinearRegression(np.eye(D), length)


def random(length: float, c: float = 1.0) -> flowsim.RandomCovarianceRegression:
    """Prompts with variances c Exponential(1)."""
    return flowsim.RandomCovarianceRegression(DiagonalLaw(Gamma(np.ones(D), 1.0)).scaled(c), length)


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[str, np.ndarray]:
    """Draw the panels; returns the literal model's band and its exact curve. Quick: fewer lengths and prompts."""
    flowsim.setup()
    print("Computing exact curves, and the bands of the literal models ..", flush=True)
    models = {(":", N): balanced_minimum(flowsim.LinearAttentionLoss(fixed(N)).structure) for N in LENGTHS}
    models |= {("-", N): balanced_minimum(flowsim.RandomCovarianceLoss(random(N)).structure) for N in LENGTHS}
    M, found = [10, 40] if quick else [*range(1, 21), *range(25, 151, 5)], {}
    panels = {"fixed covariance": fixed} | {f"c = {c}": functools.partial(random, c=c) for c in (1, 4, 9)}
    path = pathlib.Path(out or ".", "zhang2023_figure_1.png")
    with flowsim.plots.drawing(path, figsize=(8, 6)) as figure:
        for axes, (title, task) in zip(figure.subplots(2, 2, sharex=True).flat, panels.items(), strict=True):
            zero = float(zero_predictor_error(task(1)))
            for index, ((line, N), model) in enumerate(models.items()):
                limit, single = (float(flowsim.risk(model, task(1), length)) / zero for length in (np.inf, 1))
                curve = limit + (single - limit) / np.asarray(M)  # with u12 = u21 = 0 risks are affine in 1/M
                mark = {"color": f"C{index % 4}", "marker": "os^D"[index % 4], "markevery": 0.2, "markersize": 3}
                axes.plot(M, curve, line, label=f"N = {N:g}", **mark)
            axes.axhline(limit, color="k", ls="--")
            short = [length for length in M if length <= D]  # from there on least squares makes no error
            for predict, lengths, color in ((model, M, "C3"), (sampling.least_squares, short, "C0")):
                band = sampling.error_band(predict, task(M[-1]), lengths, jax.random.key(0), 16 if quick else 64) / zero
                axes.fill_between(lengths, *np.maximum(band, 1e-6), color=color, alpha=0.3, lw=0)
                if predict is model:
                    found[title] = np.vstack([band, curve])
            axes.set(title=title, yscale="log", ylim=(1e-2, None), xlabel=r"$M$", ylabel="error over zero's")
        figure.axes[0].legend(ncols=2)
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
