"""The table [init] of a problem file, which describes the start."""

import jax
import msgspec

from flowsim._core import checks
from flowsim._core.types import Document
from flowsim.problem.toml import (
    AbstractTable,
    Count,
    Matrices,
    Matrix,
    Number,
    NumberOrVector,
    Positive,
    Seed,
    Vector,
    VectorOrMatrix,
    Word,
)


class ScalesTable(AbstractTable, frozen=True):
    """init.scales: the scales of single arrays of a random start, by name. All other arrays have init.scale."""

    v: Positive | None = None
    U: Positive | None = None
    k: Positive | None = None
    q: Positive | None = None
    p: Positive | None = None
    Q: Positive | None = None
    w: Positive | None = None


class InitTable(AbstractTable, frozen=True):
    """[init]: the start. The architecture defines the kinds of start and the fields of each kind.

    **Fields:**

    - kind: the kind of start.
    - scale: the scale of the weights. With ``flow.restrict`` it is the scale of the numbers a_i and b_i, or of the
      eigenvalues.
    - theta, rank, seed: a matrix from which the start is made, or the rank and the seed of a random matrix.
    - scales: the scales of single arrays.

    All other fields are the weights of an explicit start, named as in the model.
    """

    kind: Word | None = None
    scale: Positive | None = None
    theta: Matrix | None = None
    rank: Count | None = None
    seed: Seed | None = None
    U11: Matrix | None = None
    u_minus1: Number | None = None
    u12: Vector | None = None
    u21: Vector | None = None
    A: Matrices | None = None
    B: Matrices | None = None
    u: Vector | None = None
    a: NumberOrVector | None = None
    b: VectorOrMatrix | None = None
    W_PV: Matrices | None = None
    W_KQ: Matrices | None = None
    w: Vector | None = None
    W_K: Matrices | None = None
    W_Q: Matrices | None = None
    W_V: Matrices | None = None
    W_P: Matrices | None = None
    W_1: Matrix | None = None
    W_2: Matrix | None = None
    v: Vector | None = None
    U: Matrices | None = None
    k: Matrices | None = None
    q: Matrices | None = None
    p: Matrix | None = None
    Q: Matrices | None = None
    scales: ScalesTable | None = None

    def given(self) -> Document:
        """The values of the fields that are given, by name, without the kind."""
        fields = msgspec.structs.asdict(self).items()
        return {name: value for name, value in fields if value is not None and name != "kind"}

    @property
    def symmetric(self) -> bool:
        """Whether an explicit start has a symmetric A and u = 0. True for every other kind of start."""
        return (self.A is None or tuple(zip(*self.A, strict=False)) == self.A) and not any(self.u or ())

    def arrays(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, jax.Array]:
        """The given weights of an explicit start as arrays, by name.

        **Arguments:** shapes: the names of the weights, with the shapes that they must have.

        **Raises:** `ValueError` naming the weight if its shape differs.
        """
        given = self.given()
        return {name: checks.as_array(name, given[name], shape) for name, shape in shapes.items() if name in given}
