"""The tables [model] and [loss] of a problem file: the in-context model, and the form of its population loss."""

from typing import Literal

import msgspec

from flowsim._core.checks import refuse
from flowsim.problem.toml import AbstractTable, Count, Flag, Number, Seed, Vector, Word

_SAMPLED = {"samples": 100_000, "replicates": 8, "seed": 0, "method": "auto"}


class LossTable(AbstractTable, frozen=True):
    """[loss]: the form of the population loss.

    **Fields:**

    - kind: "exact"; "printed", the formula that a paper prints although it is not exact; "limit", the limit of an
      infinite context; or "monte-carlo".
    - samples, replicates, seed, method: arguments of `MonteCarloLoss`, only for kind = "monte-carlo".
    """

    kind: Literal["exact", "printed", "limit", "monte-carlo"] = "exact"
    samples: Count | None = None
    replicates: Count | None = None
    seed: Seed | None = None
    method: Literal["auto", "prompts", "inputs", "covariances", "radial"] | None = None

    def resolved(self) -> "LossTable":
        """The table, with all defaults if the kind is "monte-carlo".

        **Raises:** `ProblemError` naming a field that only sampled losses have, if it is set for another kind of
        loss.
        """
        given = {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}
        if self.kind == "monte-carlo":
            return LossTable(**(_SAMPLED | given))
        for name in _SAMPLED:
            if name in given:
                refuse(f"loss.{name}", f'left out with kind = "{self.kind}"', "it is given")
        return self


class GuessTable(AbstractTable, frozen=True):
    """model.guess: a fixed guess linear^T x_q + bias of the query's label."""

    linear: Vector | None = None
    bias: Number = 0.0


class ModelTable(AbstractTable, frozen=True):
    """[model]: the in-context model. The architecture defines which fields it has.

    **Fields:**

    - architecture: the name of the architecture.
    - loops, layers, heads: the numbers of loops, layers and heads.
    - symmetric: whether the flow is restricted to symmetric matrices, with u = 0.
    - residual_stream: whether the layers also move the covariates, by matrices B_i.
    - parametrisation: the weights of a head, "reduced" for (b, A) or "factored" for its four matrices.
    - guess: the guess of the query's label, "zero", "trainable" or a fixed guess.
    - keys: "merged" if each head has one key-query matrix, "separate" if it has keys and queries.
    - rank: the number of keys and of queries of a head, if these are separate.
    - blocks: "label" if the values of a head are the labels, "all" if they are whole tokens.
    - query_token: whether heads attend to the query's token.
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
        """The number of layers with separate weights, 1 for a looped model."""
        return self.layers or 1

    def given(self) -> dict[str, object]:
        """The values of the fields that are given, by name, without the architecture."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "architecture"}
