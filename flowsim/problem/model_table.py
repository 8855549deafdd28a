"""[model] and [loss] of a problem file: which in-context model, and which form of its population loss."""

from typing import Literal

import msgspec

from flowsim._core.checks import refuse
from flowsim.problem.kinds import Count, Flag, Number, Seed, Vector, Word
from flowsim.problem.toml import AbstractTable

_SAMPLED = {"samples": 100_000, "replicates": 8, "seed": 0, "method": "auto"}


class LossTable(AbstractTable, frozen=True):
    """[loss]: exact; the formula that a paper prints where that is another; the limit of a long context; or by prompts.

    samples, replicates, seed, method: as the arguments of `MonteCarloLoss`, for kind = "monte-carlo" alone.
    """

    kind: Literal["exact", "printed", "limit", "monte-carlo"] = "exact"
    samples: Count | None = None
    replicates: Count | None = None
    seed: Seed | None = None
    method: Literal["auto", "prompts", "inputs", "covariances", "radial"] | None = None

    def resolved(self) -> "LossTable":
        """With the defaults of a sampled loss."""
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.kind == "monte-carlo":
            return LossTable(**(_SAMPLED | given))
        for name in _SAMPLED:
            if name in given:
                refuse(f"loss.{name}", f'left out with kind = "{self.kind}"', "it is given")
        return self


class GuessTable(AbstractTable, frozen=True):
    """model.guess: a fixed guess of the query's label, linear^T x_q + bias."""

    linear: Vector | None = None
    bias: Number = 0.0


class ModelTable(AbstractTable, frozen=True):
    """[model]: the in-context model. Which fields go with which architecture, the architecture says.

    symmetric: whether the matrices are symmetric (and u = 0), and the flow is among such; residual_stream: whether the
    layers move the covariates too, by matrices B_i; parametrisation: of heads, by (b, A) or by the matrices that the
    paper trains; guess: of the query's label; keys: whether keys and queries are one matrix a head or two, of this
    rank; blocks: whether heads see the labels alone or whole tokens; query_token: whether they attend to the query's.
    """

    architecture: Word = "linear-attention"
    loops: Count | None = None
    layers: Count | None = None
    symmetric: Flag | None = None
    residual_stream: Flag | None = None
    heads: Count | None = None
    parametrisation: Literal["reduced", "factored"] | None = None
    guess: Literal["zero", "trainable"] | GuessTable | None = None
    keys: Literal["merged", "separate"] | None = None
    rank: Count | None = None
    blocks: Literal["label", "all"] | None = None
    query_token: Flag | None = None

    @property
    def depth(self) -> int:
        """How many layers have weights of their own."""
        return self.layers or 1

    def given(self) -> dict[str, object]:
        """The fields that are not left out, beside the architecture."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "architecture"}
