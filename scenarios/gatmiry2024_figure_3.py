"""Figure 3 of gatmiry2024: more loops at test than in training, in and out of distribution.

**Source:** gatmiry2024 (Can Looped Transformers Learn to Implement Multi-step Gradient Descent?), Figure 3, section
5.3.

**What it shows:** A_opt of L = 2 and 5 loops (d = 10, n = 20) with up to 50 loops at test. In the median context
(line, with the band of 10% to 90%) the loss keeps falling. Its mean (black) falls for a few loops and then grows
without bound: contexts with an eigenvalue of A W beyond 2 are rare, and count by its 2l-th power. The mean of 2000
contexts (dotted), such as an experiment reports, is short of it by many orders. Out of distribution (eigenvalues 0.5
to 1.5) it is exact to 6 loops.

**What would falsify it:** an exact mean that keeps falling, or a median that does not.
"""

import pathlib

import jax.numpy as jnp
import numpy as np

import flowsim
from flowsim.losses.deep.residual_energy import loop_terms
from flowsim.losses.deep.scalar_minima import scalar_minimum
from flowsim.papers.gatmiry2024.figures import mean_risks, other_covariance, prompt_risks

D, N = 10, 20


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[tuple[str, int], dict[str, np.ndarray]]:
    """Draw the panels; returns the exact means and the medians. Quick: fewer loops and contexts."""
    flowsim.setup()
    print("Drawing contexts, and computing exact means over loops ..", flush=True)
    most, contexts, exact = (10, 500, 3) if quick else (50, 2000, 6)
    laws = {"covariance as in training": (1.0,) * D, "another covariance": other_covariance(D)}
    loops, found = np.arange(1, most + 1), {}
    path = pathlib.Path(out or ".", "gatmiry2024_figure_3.png")
    with flowsim.plots.drawing(path, figsize=(9, 6.5)) as figure:
        for row, L in zip(figure.subplots(2, 2, sharex=True, sharey=True), (2, 5), strict=True):
            a = scalar_minimum(D, N, L)[0]
            for axes, (title, eigenvalues) in zip(row, laws.items(), strict=True):
                risks = prompt_risks(D, N, a, eigenvalues, most, contexts)
                low, median, high = np.quantile(risks, [0.1, 0.5, 0.9], axis=0)
                if title == "another covariance":
                    A = jnp.diag(a * jnp.asarray(eigenvalues))
                    mean = np.array([float(loop_terms(int(l), True, False)(N, A=A)) for l in loops[:exact]])
                else:
                    mean = mean_risks(D, N, a, range(1, most + 1))
                axes.fill_between(loops, low, high, color="C0", alpha=0.25, lw=0, label="10% to 90% of contexts")
                axes.plot(loops, median, color="C0", label="median")
                axes.plot(loops, np.mean(risks, axis=0), ":", color="C3", label=f"mean of {contexts} contexts")
                axes.plot(loops[: mean.size], mean, "k", marker="." if mean.size < most else "", label="mean, exact")
                axes.axvline(L, color="0.6", lw=1, ls="--")
                axes.set(yscale="log", ylim=(1e-4, 1e4), title=f"trained with {L} loops, {title}")
                found[title, L] = {"mean": mean, "median": median}
            row[0].set(ylabel="loss")
        for axes in figure.axes[2:]:
            axes.set(xlabel="loops at test")
        figure.axes[0].legend(loc="upper right")
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
