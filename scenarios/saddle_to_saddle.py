"""From a small start rank-one heads learn one eigenvalue after the other, with a plateau of known loss between.

**Source:** Zhang, Singh, Latham and Saxe (Training dynamics of in-context learning in linear attention), separate keys
and queries of rank one: yhat = (1/N sum y_n x_n)^T M x_q with M = sum_h v_h k_h q_h^T; here N = 31 and four heads.

**What it shows:** the loss (1/2)[tr(Lambda) - 2 tr(Lambda^2 M) + tr(M^T Gamma Lambda M Lambda)] rests near the levels
(1/2)[sum_i lambda_i - sum_{i <= m} lambda_i^2/gamma_i], m = 0, .., 4, gamma_i = (1 + 1/N) lambda_i + tr(Lambda)/N: each
drop is the learning of the next eigenvalue, the largest first, and fewer directions leave each plateau.

**What would falsify it:** another number of plateaus than five, or a level more than 1e-10 away from its closed form.
"""

import pathlib

import numpy as np

import flowsim
from flowsim import initialization

LAMBDA, N, SCALE = np.array([4.0, 2.0, 1.0, 0.5]), 31, 1e-6
GAMMA = (1 + 1 / N) * LAMBDA + np.sum(LAMBDA) / N
LEVELS = (np.sum(LAMBDA) - np.cumsum([0.0, *(LAMBDA**2 / GAMMA)])) / 2


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[flowsim.Plateau, ...]:
    """Integrate, print the table and draw; returns the plateaus. Quick makes no difference."""
    flowsim.setup()
    print("Following the flow of four heads from plateau to plateau ..", flush=True)
    like = flowsim.SeparateHeads(np.zeros(4), np.zeros((4, 1, 4)), np.zeros((4, 1, 4)))
    start = initialization.linear_heads(SCALE, like, seed=1)
    loss = flowsim.AttentionLoss(flowsim.LinearRegression(np.diag(LAMBDA), N), start)
    flow = flowsim.gradient_flow(loss, start)
    found = flowsim.plateaus(flow, loss)
    print("level            off the form       enter       leave    |grad|  index  fastest")
    for plateau, level in zip(found, LEVELS, strict=True):
        fastest = 0.0 if plateau.rates is None else np.max(plateau.rates, initial=0.0)
        times = f"{plateau.enter:10.0f}  {plateau.leave:10.0f}  {plateau.grad_norm:8.1e}"
        print(f"{plateau.level:.13f}  {plateau.level - level:12.1e}  {times}  {plateau.index:5d}  {fastest:7.1e}")
    path = pathlib.Path(out or ".", "saddle_to_saddle.png")
    with flowsim.plots.drawing(path, figsize=(8.0, 3.4)) as figure:
        flowsim.plots.staircase(flow, found, ax=figure.add_subplot())
    print(f"figure: {path.absolute()}")
    return found


if __name__ == "__main__":
    main()
