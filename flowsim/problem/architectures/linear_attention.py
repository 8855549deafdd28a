"""The architecture "linear-attention": one layer of linear attention."""

from collections.abc import Callable

from flowsim import initialization
from flowsim._core import checks
from flowsim.losses import AbstractPopulationLoss, LinearAttentionLoss, RandomCovarianceLoss
from flowsim.models import LinearAttention
from flowsim.problem.architecture import Architecture, Start, random_start, scale_of, seed_of
from flowsim.problem.init_table import InitTable
from flowsim.problem.model_table import ModelTable
from flowsim.tasks import LinearRegression, RandomCovarianceRegression


def _loss(model: ModelTable, task: LinearRegression | RandomCovarianceRegression, kind: str) -> AbstractPopulationLoss:
    return LinearAttentionLoss(task) if isinstance(task, LinearRegression) else RandomCovarianceLoss(task)


def _of_theta(make: Callable[..., LinearAttention]) -> Callable[[InitTable, int, ModelTable], LinearAttention]:
    """The function that makes a start from a matrix M, which is ``init.theta`` or drawn with ``init.seed``.

    **Arguments:** make: (scale, M) -> the model.
    """

    def made(table: InitTable, d: int, model: ModelTable) -> LinearAttention:
        if table.theta is not None:
            return make(scale_of(table), checks.as_array("theta", table.theta, (d, None)))
        return make(scale_of(table), initialization.random_theta(d, table.rank or d, seed_of(table)))

    return made


def _explicit(table: InitTable, d: int, model: ModelTable) -> LinearAttention:
    return LinearAttention(**table.arrays({"U11": (d, d), "u_minus1": (), "u12": (d,), "u21": (d,)}))


_STARTS = {
    "balanced": Start(_of_theta(initialization.balanced), ("scale",), ("theta", "rank", "seed")),
    # M is drawn square and not as a factor, so it has no rank.
    "balanced-indefinite": Start(_of_theta(initialization.balanced_indefinite), ("scale",), ("theta", "seed")),
    "unbalanced": Start(_of_theta(initialization.unbalanced), ("scale",), ("theta", "rank", "seed")),
    "zeros": Start(lambda table, d, model: initialization.zeros(d)),
    "scaled-identity": Start(lambda table, d, model: initialization.scaled_identity(scale_of(table), d), ("scale",)),
    "random": random_start(initialization.random),
    "explicit": Start(_explicit, ("U11", "u_minus1"), ("u12", "u21")),
}

LINEAR_ATTENTION = Architecture(
    "linear-attention",
    loss=_loss,
    starts=lambda model: _STARTS,
    start="balanced",
    factor=0.5,
    random_covariance=True,
)
