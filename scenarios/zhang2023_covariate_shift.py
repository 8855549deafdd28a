"""The risk of a layer on shifted prompts while it trains: which shifts it tolerates, and which it learns to fail on.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Theorem 4.2, section 4.2.

**What it shows:** noise on the labels and other queries cost no more than they must. Covariates c times as large do:
predictions grow by c^2, and for c > 1 the risk falls only while the weights are still small, and rises from then on. So
does a query orthogonal to all examples: the prediction is not zero, as printed, unless Lambda is a multiple of I.

**What would falsify it:** a risk at the end of the flow other than that of the limit (4.1), or another verdict.
"""

import pathlib

import numpy as np

import flowsim
from flowsim.initialization import balanced
from flowsim.losses.prompt_risk import best_linear_error, zero_predictor_error
from flowsim.papers.zhang2023.conditions import limit

LAMBDA, M = np.diag([0.5, 1.0, 2.0]), 50


def shifted() -> dict[str, flowsim.LinearRegression]:
    """Laws of test prompts of M examples."""
    trained = flowsim.LinearRegression(LAMBDA, M)
    return {
        "as in training": trained,
        "label noise 0.5": flowsim.LinearRegression(LAMBDA, M, label_noise=0.5),
        "isotropic query": flowsim.LinearRegression(LAMBDA, M, query_covariance=np.eye(3)),
        "covariates halved": trained.scaled(0.5),
        "covariates doubled": trained.scaled(2.0),
    }


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[dict[str, np.ndarray], list[flowsim.Verdict]]:
    """Train once, draw the excess risk of every law over flow time, judge section 4.2. Quick: the same."""
    flowsim.setup()
    print("Following one flow, and judging section 4.2 ..", flush=True)
    loss = flowsim.LinearAttentionLoss(flowsim.LinearRegression(LAMBDA, context_length=20))
    trajectory = flowsim.gradient_flow(loss, balanced(0.01, np.eye(3)))
    verdicts = flowsim.judge("zhang2023.sec-4.2", loss, trajectory)
    path, found = pathlib.Path(out or ".", "zhang2023_covariate_shift.png"), {}
    with flowsim.plots.drawing(path) as figure:
        axes = figure.add_subplot(
            xscale="log", yscale="log", xlabel=r"flow time  $t$", ylabel="excess risk over zero's"
        )
        for index, (name, task) in enumerate(shifted().items()):
            best, zero = best_linear_error(task), zero_predictor_error(task)
            found[name] = np.asarray((flowsim.risk_along(trajectory, task, M) - best) / (zero - best))
            end = float((flowsim.risk(limit(loss.task), task, M) - best) / (zero - best))
            style = ("-", "--", "-.", ":", (0, (1, 4)))[index]
            axes.plot(trajectory.t[1:], found[name][1:], ls=style, color=f"C{index % 4}", label=name)
            print(f"{name:20} excess over zero's {found[name][-1]:.6f}, of the limit (4.1) {end:.6f}")
        axes.legend()
    print(flowsim.verdict_table(verdicts), f"figure: {path.absolute()}", sep="\n\n")
    return found, verdicts


if __name__ == "__main__":
    main()
