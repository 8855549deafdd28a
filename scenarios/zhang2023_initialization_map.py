"""Which starts reach the global minimum? The theorem's condition against the flow, over scales and kinds of start.

**Source:** zhang2023 (Trained Transformers Learn Linear Models In-Context), Assumption 3.3, Theorem 4.1; "the question
of convergence under alternative random initialization schemes" is left for future work in section 3.3.

**What it shows:** with u12 = u21 = 0 every start drawn reaches the global minimum, at any scale, balanced or not,
semidefinite or not. With all weights random many do not, however small they are: the population loss has another local
minimum, strict up to the one direction of rescaling, at a positive excess.

**What would falsify it:** a start with u12 = u21 = 0 that ends elsewhere, or a direction of descent at that minimum.
"""

import pathlib

import numpy as np

import flowsim
from flowsim.claims import EndPoint
from flowsim.report.plots import maps

PROBLEM = {
    "task": {"covariance": {"eigenvalues": [0.5, 1.0, 2.0]}, "context_length": 10},
    "init": {"kind": "balanced"},
    "flow": {"rtol": 1e-7},
}
KINDS = ["balanced", "balanced-indefinite", "unbalanced", "random"]


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[flowsim.Map, EndPoint]:
    """Draw the map, then look at a random start that misses the global minimum. Quick: fewer starts."""
    flowsim.setup()
    print("Following a flow from every start of the map ..", flush=True)
    axes = {
        "init.scale": "0.01,3" if quick else "geom:1e-3:10:9",
        "init.seed": "1,3" if quick else "0:5",
        "init.kind": [KINDS[0], KINDS[3]] if quick else KINDS,
    }
    folder = pathlib.Path(out or ".", "zhang2023_initialization_map")
    found = flowsim.sweep(PROBLEM, axes, out=folder, resume=folder.exists(), progress=not quick)
    path = folder.with_suffix(".png")
    maps.draw(found, path)
    for place, kind in enumerate(axes["init.kind"]):
        outcomes, counts = np.unique(found["outcome"][:, :, place], return_counts=True)
        print(f"{kind:20}", *(f"{count} {outcome}" for outcome, count in zip(outcomes, counts, strict=True)))

    missed = np.argwhere(found["outcome"] == "other-critical-point")[0].tolist()
    problem = found.problem(missed).build()
    end = flowsim.end_point(problem.loss, problem.run())
    assert end is not None
    print(
        f"{found.command(missed)}\n  ends at a {end.kind}: excess {end.excess:.6f}, gradient norm {end.grad_norm:.1e},"
    )
    print(f"  Hessian: {end.positive} positive, {end.negative} negative, {end.flat} flat directions")
    print(f"figure: {path.absolute()}")
    return found, end


if __name__ == "__main__":
    main()
