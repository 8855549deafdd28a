"""How far random covariances keep a trained layer from linear regression: one third, or what the query tells.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), section 4.3: with variances Exponential(1)
and long prompts E[yhat | x_query, w] -> <w, x_query>/3.

**What it shows:** the query is drawn with the covariance of its prompt and tells of it. Trained on Gamma(k) variances
of mean one the layer predicts, on average, k/(k + 2) E[lambda | x] times the label of a query of size |x|, not
k/(k + 2): for k = 1 that is .19, .40 and .87 at |x| = .1, 1 and 3. Over queries the mean of yhat y is (k + 1)/(k + 2)
of that of y^2.

**What would falsify it:** "holds" for the printed third, or "violated" for what corrects it.
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

import flowsim
from flowsim.initialization import scaled_identity
from flowsim.papers.zhang2023.section_4_3 import mean_prediction
from flowsim.tasks.covariance_laws import DiagonalLaw, Gamma

DIMENSION = 3
CLAIM = "zhang2023.sec-4.3.one-third"


def trained(shape: float) -> tuple[DiagonalLaw, flowsim.LinearAttention, list[flowsim.Verdict]]:
    """The law of the variances, the layer at the end of the flow, and the verdicts on both forms of the statement."""
    law = DiagonalLaw(Gamma(np.full(DIMENSION, shape), shape))
    loss = flowsim.RandomCovarianceLoss(flowsim.RandomCovarianceRegression(law, np.inf))
    trajectory = flowsim.gradient_flow(loss, scaled_identity(0.1, DIMENSION))
    return law, trajectory.end, flowsim.judge(CLAIM, loss, trajectory)


def main(quick: bool = False, out: pathlib.Path | None = None) -> dict[float, tuple[np.ndarray, list[flowsim.Verdict]]]:
    """Draw E[yhat | x, w]/<w, x> against |x| beside k/(k + 2), for several laws. Quick: fewer laws and queries."""
    flowsim.setup()
    print("Following a flow for each law of the variances ..", flush=True)
    sizes = np.asarray([0.1, 1.0, 3.0]) if quick else np.geomspace(0.05, 5, 61)
    ones, found = jnp.ones(DIMENSION), {}
    path = pathlib.Path(out or ".", "zhang2023_one_third.png")
    with flowsim.plots.drawing(path) as figure:
        axes = figure.add_subplot(xlabel=r"$|x_i|$ of the query", ylabel="mean prediction over label")
        for index, shape in enumerate((1.0, 4.0) if quick else (0.5, 1.0, 4.0, 20.0)):
            law, model, verdicts = trained(shape)
            means = jax.jit(jax.vmap(lambda x, law=law, model=model: mean_prediction(model, law, x * ones, ones)))
            factors = np.asarray(means(jnp.asarray(sizes))) / (sizes * DIMENSION)
            axes.semilogx(sizes, factors, color=f"C{index}", label=f"Gamma({shape:g})")
            axes.axhline(shape / (shape + 2), color=f"C{index}", ls="--")
            found[shape] = factors, verdicts
        axes.legend()
    for shape, (factors, _) in found.items():
        print(f"Gamma({shape:g}): {factors[0]:.3f} at |x| = {sizes[0]:g}, {factors[-1]:.3f} at {sizes[-1]:g}", end="; ")
        print(f"k/(k + 2) = {shape / (shape + 2):.3f}")
    print(flowsim.verdict_table(found[1.0][1]), f"figure: {path.absolute()}", sep="\n")
    return found


if __name__ == "__main__":
    main()
