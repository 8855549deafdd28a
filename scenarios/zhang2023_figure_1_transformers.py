"""Figure 1 of zhang2023, its transformers: decoders trained by Adam, least squares, and linear attention's limit.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Figure 1 and its caption, appendix E.

**What it shows:** errors over that of predicting zero, of decoders trained at N examples on one covariance (dotted) or
on Exponential(1) variances (solid), on M examples with variances c times as large, with 90% bootstrap bands. At d = 3
larger N help, and beyond N errors spike, less so at c = 4 and 9; random variances do harm at c = 1, and help at c = 9
by less than the bands: the caption has them help. `main(size="paper")` is the paper's size, not run here.
**What would falsify it:** a larger N that does not help, or no spike beyond N.
"""

import pathlib

import jax
import numpy as np

import flowsim
from flowsim.losses.arrowhead import balanced_minimum
from flowsim.losses.prompt_risk import zero_predictor_error
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma
from flowsim.tasks.sampling import bootstrap_interval, least_squares, squared_errors

GARG = flowsim.Curriculum(dimensions=(5, 1), lengths=(11, 2), every=2000)
# d, the training lengths N, Adam, and the decoder.
SIZES = {
    "quick": (1, (4,), {"steps": 600, "learning_rate": 1e-2}, {"embedding": 8, "layers": 2, "heads": 1}),
    "small": (3, (6, 12), {"steps": 3000, "learning_rate": 3e-3}, {"embedding": 32, "layers": 2, "heads": 4}),
    "paper": (20, (40, 70, 100), {"steps": 500_000, "curriculum": GARG}, {"embedding": 256, "layers": 12, "heads": 8}),
}


def main(quick: bool = False, out: pathlib.Path | None = None, size: str = "small") -> dict[tuple, np.ndarray]:
    """Train and draw; returns M, errors and bands by panel, procedure and N. Quick: d = 1, one tiny decoder."""
    flowsim.setup()
    print("Training decoders by Adam ..", flush=True)
    d, lengths, adam, shape = SIZES["quick" if quick else size]
    random = lambda length, c: flowsim.RandomCovarianceRegression(DiagonalLaw(Gamma(np.ones(d), 1 / c)), length)
    prompts = lambda length, c: random(length, c) if c else flowsim.LinearRegression(np.eye(d), length)
    M = sorted({1, 2, d} | {N + k * N // 6 for N in lengths for k in (-3, 0, 1, 3)})
    curves, found, key = {("least squares", d): ("k-", least_squares)}, {}, jax.random.key(0)
    for name, line, c in (("fixed", ":", None), ("random", "-", 1.0))[: 1 if quick else 2]:
        for index, N in enumerate(lengths, 1):
            start = flowsim.Decoder(d, **shape, longest=M[-1], key=key)
            curves[name, N] = f"C{index}{line}", flowsim.train(start, prompts(N, c), **adam, key=key, progress=True)[0]
    linear = balanced_minimum(flowsim.RandomCovarianceLoss(random(np.inf, 1.0)).structure)
    path = pathlib.Path(out or ".", "zhang2023_figure_1_transformers.png")
    with flowsim.plots.drawing(path, figsize=(8, 6)) as figure:
        for axes, c in zip(figure.subplots(2, 2, sharex=True).flat, (None, 1, 4, 9), strict=True):
            task, title = prompts(M[-1], c), f"c = {c}" if c else "fixed covariance"
            zero = float(zero_predictor_error(task))
            axes.hlines([1, flowsim.risk(linear, task, np.inf) / zero], 1, M[-1], ["0.6", "k"], "--")
            for (name, N), (style, predict) in curves.items():
                shown = M[: M.index(N) + 1] if predict is least_squares else M  # which makes no error from d on
                errors = squared_errors(predict, task, shown, jax.random.key(1), 8 if quick else 64) / zero
                mean, band = errors.mean(axis=(1, 2)), np.transpose([bootstrap_interval(group) for group in errors])
                found[title, name, N] = np.vstack([shown, mean, band])
                axes.plot(shown, mean, style, label=f"{name}, N = {N}" if N in lengths else name)
                axes.fill_between(shown, *band, color=style[:-1], alpha=0.2, lw=0)
                if N in lengths:
                    at, beyond = mean[M.index(N)], mean[M.index(N) + 1 :].max()
                    print(f"{title}, {name}, N = {N}: error {at:.3f}; up to {beyond / at:.2f} times beyond M = N")
            axes.set(title=title, yscale="log", ylim=(5e-3, None), xlabel=r"$M$", ylabel="error over zero's")
        figure.axes[0].legend(fontsize="x-small")
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
