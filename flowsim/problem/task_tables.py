"""The tables [task] and [test] of a problem file: the laws of training prompts and of test prompts."""

import math
from typing import Annotated, Any, Literal, cast

import jax
import jax.numpy as jnp
import msgspec
import numpy as np
from jaxtyping import Array, Float
from msgspec import Meta

from flowsim._core import checks
from flowsim._core.checks import refuse
from flowsim.problem import toml
from flowsim.problem.law_table import LawTable
from flowsim.problem.toml import AbstractTable, Count, Length, Matrix, Nonnegative, Positive, Ratio, Seed, Vector
from flowsim.tasks import LengthLaw, LinearRegression, RandomCovarianceRegression, SpectralRegression

EXTRAS = ("prior_mean", "prior_covariance", "query_covariance", "label_noise", "length_law")
"""Properties of a task, beyond a covariance and one length, that only some architectures allow."""


class Eigenvalues(AbstractTable, frozen=True):
    """A covariance given by its eigenvalues: diagonal, or with a random eigenbasis drawn with ``rotation_seed``.

    The eigenvalues are a list, or ``dimension`` numbers in geometric progression from ``scale`` (default 1) to
    scale/condition.
    """

    eigenvalues: Vector | None = None
    condition: Ratio | None = None
    dimension: Count | None = None
    scale: Positive | None = None
    rotation_seed: Seed | None = None

    @property
    def size(self) -> int:
        """The dimension d of the covariance."""
        return self.dimension or len(self.eigenvalues or ())

    @property
    def values(self) -> tuple[float, ...]:
        """The d eigenvalues as numbers. The fields must not be traced."""
        if self.eigenvalues is not None:
            return self.eigenvalues
        assert self.condition is not None and self.dimension is not None  # see `check`
        largest = 1.0 if self.scale is None else self.scale
        return tuple(np.geomspace(largest, largest / self.condition, self.dimension).tolist())

    def matrix(self) -> Float[Array, "d d"]:
        """The covariance Q diag(eigenvalues) Q^T. Without ``rotation_seed`` Q is I. The fields may be traced."""
        values = self._traced() if self.eigenvalues is None else jnp.asarray(self.eigenvalues)
        if self.rotation_seed is None:
            return jnp.diag(values)
        rotation = jax.random.orthogonal(jax.random.key(self.rotation_seed), values.size)
        matrix = (rotation * values[None, :]) @ rotation.T
        return (matrix + matrix.T) / 2

    def _traced(self) -> Float[Array, " d"]:
        """The eigenvalues in geometric progression. ``condition`` and ``scale`` may be traced."""
        if checks.is_concrete(self.condition) and checks.is_concrete(self.scale):
            return jnp.asarray(self.values)
        assert self.condition is not None and self.dimension is not None  # see `check`
        largest = 1.0 if self.scale is None else self.scale
        return largest * self.condition ** -jnp.linspace(0.0, 1.0, self.dimension)

    def check(self, where: str, *, semi: bool = False) -> None:
        """Refuse a table that gives the eigenvalues in neither or both of the two forms, or gives some that are not
        positive.

        **Arguments:** where: the name of the table in messages; semi: whether listed eigenvalues may be zero.

        **Raises:** `ProblemError` naming the field.
        """
        if self.eigenvalues is not None:
            for name in ("condition", "dimension", "scale"):
                if getattr(self, name) is not None:
                    refuse(f"{where}.{name}", "left out where eigenvalues are given", "it is given")
            if not all(value > 0 or (semi and value == 0) for value in self.eigenvalues):
                expected = "at least 0" if semi else "positive"
                refuse(f"{where}.eigenvalues", expected, f"the smallest is {min(self.eigenvalues):g}")
            return
        if self.condition is None and self.dimension is None:
            expected = "a list of numbers, unless condition and dimension are given"
            refuse(f"{where}.eigenvalues", expected, "it is missing")
        for name in ("condition", "dimension"):
            if getattr(self, name) is None:
                refuse(f"{where}.{name}", _FIELDS[f"{where}.{name}"].expected, "it is missing")
        checks.within_memory(f"{where}.dimension", self.dimension or 0)


class LengthTable(AbstractTable, frozen=True):
    """A law of the number of examples in a prompt. Without ``probabilities`` all lengths are equally likely."""

    lengths: Annotated[tuple[Length | Literal["inf"], ...], Meta(description="a list of lengths")]
    probabilities: Vector | None = None

    def law(self) -> LengthLaw:
        """The `LengthLaw` that the table describes.

        **Raises:** `ValueError` naming the argument.
        """
        try:
            return LengthLaw([float(length) for length in self.lengths], self.probabilities)
        except ValueError as error:
            raise ValueError(f"context_length.{error}") from None


class TaskTable(AbstractTable, frozen=True, kw_only=True):
    """[task]: the law of a prompt.

    The fields are the arguments of `LinearRegression`, except for

    - context_length: a number, or a law of the number of examples.
    - covariance: a matrix, a table of eigenvalues, or "identity" together with ``dimension``.
    - covariance_law: the law of a random covariance, in place of ``covariance``.

    Only some architectures allow label_noise, prior_mean, prior_covariance, query_covariance and a law of lengths.
    """

    covariance: Matrix | Eigenvalues | Literal["identity"] | None = None
    context_length: Length | Literal["inf"] | LengthTable
    covariance_law: LawTable | None = None
    dimension: Count | None = None
    weights: Literal["isotropic", "inverse-covariance"] | None = None
    prior_mean: Vector | None = None
    prior_covariance: Matrix | Eigenvalues | Literal["identity"] | None = None
    query_covariance: Matrix | Eigenvalues | Literal["identity"] | None = None
    label_noise: Nonnegative | None = None

    @property
    def extras(self) -> tuple[str, ...]:
        """The names of the members of `EXTRAS` that this task has."""
        given = [name for name in EXTRAS if name != "length_law" and getattr(self, name) is not None]
        return (*given, *(["length_law"] if isinstance(self.context_length, LengthTable) else []))

    @property
    def size(self) -> int:
        """The dimension d of the covariates."""
        if self.covariance_law is not None:
            return self.covariance_law.size
        if isinstance(self.covariance, Eigenvalues):
            return self.covariance.size
        return self.dimension or len(self.covariance or ())

    def build(self) -> LinearRegression | RandomCovarianceRegression:
        """The law of a prompt that the table describes, with all defaults filled in. Numbers in it may be traced.

        **Raises:** `ValueError` naming the argument.
        """
        given, law, length = self.context_length, None, None
        if isinstance(given, LengthTable):
            law = given.law()
        else:
            length = float(given) if checks.is_concrete(given) else cast(Any, given)
        if self.covariance_law is not None:
            assert length is not None, "a random covariance excludes a law of lengths"
            return RandomCovarianceRegression(self.covariance_law.law(), length)
        assert self.covariance is not None and self.weights is not None, "a resolved table has them"
        covariance = _matrix("covariance", self.covariance, self.size)
        if checks.is_concrete(covariance):
            size = float(np.max(np.abs(covariance), initial=0.0))
            if size > 1 / _SMALLEST or 0 < size < _SMALLEST:
                expected = f"of a size between {_SMALLEST:g} and {1 / _SMALLEST:g}, where float64 holds its powers"
                checks.refuse("covariance", expected, f"its largest entry is {size:g}")
        others = {
            name: _matrix(name, value, self.size)
            for name in ("prior_covariance", "query_covariance")
            if (value := getattr(self, name)) is not None
        }
        return LinearRegression(
            covariance,
            length,
            length_law=law,
            label_noise=0.0 if self.label_noise is None else self.label_noise,
            weights=self.weights,
            prior_mean=self.prior_mean,
            prior_covariance=others.get("prior_covariance"),
            query_covariance=others.get("query_covariance"),
        )

    @property
    def is_isotropic(self) -> bool:
        """Whether the covariates are x ~ N(0, I)."""
        if self.covariance is None:
            return False
        return bool(np.array_equal(_matrix("task.covariance", self.covariance, self.size), np.eye(self.size)))

    def spectrum(self) -> SpectralRegression:
        """The law of a prompt as a `SpectralRegression`, without forming the matrix if the eigenvalues are known.

        **Raises:** `ValueError` naming the argument.
        """
        assert self.covariance is not None and self.weights is not None, "a resolved table has them"
        if self.covariance == "identity":
            values, counts = np.ones(1), np.asarray([self.size])
        elif isinstance(self.covariance, Eigenvalues):
            values, counts = np.unique(self.covariance.values, return_counts=True)
        else:
            matrix = _matrix("covariance", self.covariance, self.size)
            values = np.linalg.eigvalsh(checks.positive_definite("covariance", matrix))
            counts = np.ones(values.size, dtype=int)
        return SpectralRegression(values, float(self._one_length), multiplicities=counts.tolist(), weights=self.weights)

    @property
    def _one_length(self) -> int | float | str:
        if isinstance(self.context_length, LengthTable):
            refuse("task.context_length", "one length", "it is a law of lengths")
        return self.context_length

    def resolved(self, weights: str) -> "TaskTable":
        """The table, checked, with lengths as int or "inf", and with ``weights`` as the default law of w.

        **Raises:** `ProblemError` naming a field that is missing or in conflict with another.
        """
        if (self.covariance is None) == (self.covariance_law is None):
            came = "both are" if self.covariance else "neither is"
            refuse("task.covariance", "given, or task.covariance_law, and not both", f"{came} given")
        if self.covariance == "identity" and self.dimension is None:
            refuse("task.dimension", 'given with covariance = "identity"', "it is missing")
        if self.covariance != "identity" and self.dimension is not None:
            refuse("task.dimension", 'left out unless covariance = "identity"', "it is given")
        if isinstance(self.covariance, Eigenvalues):
            self.covariance.check("task.covariance")
        if self.covariance_law is not None:
            self.covariance_law.check("task.covariance_law")
        for name in ("prior_covariance", "query_covariance"):
            if isinstance(table := getattr(self, name), Eigenvalues):
                table.check(f"task.{name}", semi=name == "prior_covariance")
        length = self.context_length
        if isinstance(length, LengthTable):
            whole = tuple(_whole("task.context_length.lengths", each) for each in length.lengths)
            length = msgspec.structs.replace(length, lengths=whole)
        else:
            length = _whole("task.context_length", length)
        return msgspec.structs.replace(self, context_length=length, weights=self.weights or weights)


class NewPromptTable(AbstractTable, frozen=True):
    """[test]: the law of test prompts, for the risk of the model along the flow.

    **Fields:**

    - length: the number of examples.
    - covariance, covariance_law: the covariance of the covariates, fixed or random. Default as in training.
    - query_covariance: the covariance of the query. Default as for the covariates.
    - scale: a number by which all covariates and the query are multiplied.
    - label_noise: the standard deviation of the label noise.
    """

    length: Length | Literal["inf"]
    covariance: Matrix | Eigenvalues | Literal["identity"] | None = None
    covariance_law: LawTable | None = None
    query_covariance: Matrix | Eigenvalues | Literal["identity"] | None = None
    scale: Positive = 1.0
    label_noise: Nonnegative = 0.0

    def resolved(self) -> "NewPromptTable":
        """The table, checked, with the length as an int or "inf".

        **Raises:** `ProblemError` naming a field that is in conflict with another.
        """
        if self.covariance is not None and self.covariance_law is not None:
            refuse("test.covariance", "left out where test.covariance_law is given", "it is given")
        if self.covariance_law is not None:
            self.covariance_law.check("test.covariance_law")
        for name in ("covariance", "query_covariance"):
            if isinstance(table := getattr(self, name), Eigenvalues):
                table.check(f"test.{name}")
        return msgspec.structs.replace(self, length=_whole("test.length", self.length))

    def task(
        self, training: LinearRegression | RandomCovarianceRegression
    ) -> LinearRegression | RandomCovarianceRegression:
        """The law of the test prompts, given the law of the training prompts.

        **Raises:** `ValueError` naming the argument.
        """
        length, d = float(self.length), training.dimension
        inherited = training.law if isinstance(training, RandomCovarianceRegression) and not self.covariance else None
        law = self.covariance_law.law() if self.covariance_law else inherited
        if law is not None:
            for name, default in (("query_covariance", None), ("label_noise", 0.0)):
                if getattr(self, name) != default:
                    checks.refuse(name, "left out where covariances are random", "it is given")
            if law.dimension != d:
                checks.refuse("covariance_law", f"of the dimension of training, {d}", f"it is of {law.dimension}")
            return RandomCovarianceRegression(law, length).scaled(self.scale)
        matrices = {
            name: checks.as_array(name, _matrix(name, value, d), (d, d))
            for name in ("covariance", "query_covariance")
            if (value := getattr(self, name)) is not None
        }
        covariance = matrices.get("covariance", training.mean_covariance)
        query = matrices.get("query_covariance")
        return LinearRegression(covariance, length, label_noise=self.label_noise, query_covariance=query).scaled(
            self.scale
        )


def _matrix(
    name: str, covariance: tuple[tuple[float, ...], ...] | Eigenvalues | str, dimension: int
) -> Float[Array, "rows columns"]:
    """The matrix of a covariance that is a list of rows, a table of eigenvalues, or "identity".

    The shape of a list of rows is not checked.

    **Arguments:** name: the name in messages; covariance: in one of the three forms; dimension: d, for "identity".
    """
    if isinstance(covariance, Eigenvalues):
        # The dimension is never traced.
        checks.within_memory(f"{name}.dimension", covariance.size**2)
        return covariance.matrix()
    if covariance == "identity":
        checks.within_memory("dimension", dimension**2)
    return jnp.eye(dimension) if covariance == "identity" else checks.as_array(name, covariance, (None, None))


def _whole(name: str, length: int | float | str) -> int | str:
    """A number of examples as an int, or "inf".

    **Raises:** `ProblemError` naming the field ``name`` if the number is not whole, below 1 or too large.
    """
    if length in ("inf", math.inf):
        return "inf"
    if isinstance(length, str) or not 1 <= length <= _LONGEST or length != int(length):
        field = name.removesuffix(".lengths")
        expected = _FIELDS[name].expected if field == name else 'whole numbers of at least 1, or "inf"'
        refuse(name, expected, f"it is {length!s:.60}" if field == name else f"one is {length!s:.60}")
    return int(length)


_SMALLEST = 1e-100
_LONGEST = 10**300  # some theorems ask for huge numbers of examples
_FIELDS = toml.fields(TaskTable, "task.") | toml.fields(NewPromptTable, "test.")
