"""The table covariance_law of a problem file, which describes the law of a random covariance."""

import dataclasses
from collections.abc import Callable
from typing import Literal

import msgspec

from flowsim._core import checks
from flowsim.problem.toml import AbstractTable, Count, Matrix, NumberOrVector, Seed, fields, refuse
from flowsim.tasks import covariance_laws
from flowsim.tasks.covariance_laws import AbstractCovarianceLaw, DiagonalLaw, SampledLaw, WishartDraw


class LawTable(AbstractTable, frozen=True):
    """The table covariance_law.

    The family determines which fields are needed and allowed; see ``_FAMILIES``. A parameter is a list with a value
    for each coordinate, or one number for all coordinates.
    """

    family: Literal["exponential", "gamma", "uniform", "log-normal", "discrete", "deterministic", "moments", "wishart"]
    dimension: Count | None = None
    rate: NumberOrVector | None = None
    shape: NumberOrVector | None = None
    low: NumberOrVector | None = None
    high: NumberOrVector | None = None
    location: NumberOrVector | None = None
    spread: NumberOrVector | None = None
    values: Matrix | None = None
    probabilities: Matrix | None = None
    eigenvalues: NumberOrVector | None = None
    first: NumberOrVector | None = None
    second: NumberOrVector | None = None
    third: NumberOrVector | None = None
    mean: Matrix | None = None
    degrees: Count | None = None
    samples: Count | None = None
    seed: Seed | None = None

    @property
    def parameters(self) -> dict[str, object]:
        """The values of the fields that are given, by name, without family and dimension."""
        given = msgspec.structs.asdict(self).items()
        return {name: value for name, value in given if value is not None and name not in ("family", "dimension")}

    @property
    def size(self) -> int:
        """The dimension d of the covariance."""
        return self.dimension or max(map(_length, self.parameters.values()))

    def check(self, table: str) -> None:
        """Refuse missing fields, fields that the family would ignore, and lists of different lengths.

        **Arguments:** table: the name of the table in messages, such as "task.covariance_law".

        **Raises:** `ProblemError` naming the field.
        """
        family, given = _FAMILIES[self.family], self.parameters
        known = fields(LawTable, f"{table}.")
        for name in family.needed:
            if name not in given:
                expected = known[f"{table}.{name}"].expected
                refuse(f"{table}.{name}", expected, f'it is missing (family = "{self.family}")')
        for name in given:
            if name not in family.needed + family.allowed:
                refuse(f"{table}.{name}", f'left out with family = "{self.family}"', "it is given")
        if self.dimension is None and not any(isinstance(value, tuple) for value in given.values()):
            refuse(f"{table}.dimension", "given where every parameter is one number", "it is missing")
        checks.within_memory(f"{table}.dimension", self.size**2)
        samples = self.samples or _SAMPLES
        checks.within_memory(f"{table}.samples", samples * self.size**2)
        checks.within_memory(f"{table}.degrees", samples * (self.degrees or 1) * self.size)
        for name, value in given.items():
            if isinstance(value, tuple) and len(value) != self.size:
                refuse(f"{table}.{name}", f"of length {self.size}, the dimension", f"its length is {len(value)}")

    def law(self) -> AbstractCovarianceLaw:
        """The law of covariances that the table describes.

        **Raises:** `ValueError` naming the argument.
        """
        try:
            return _FAMILIES[self.family].make(self)
        except ValueError as error:
            raise ValueError(f"covariance_law.{error}") from None

    def coordinates(self, name: str) -> tuple:
        """The values of a parameter, one for each of the d coordinates."""
        value = getattr(self, name)
        return value if isinstance(value, tuple) else (value,) * self.size


@dataclasses.dataclass(frozen=True)
class _Family:
    """A family of laws.

    **Arguments:** make: table -> the law; needed: the fields that the table must have; allowed: the optional fields
    of the table.
    """

    make: Callable[[LawTable], AbstractCovarianceLaw]
    needed: tuple[str, ...]
    allowed: tuple[str, ...] = ()


def _independent(make: Callable[..., covariance_laws.AbstractCoordinates], *names: str) -> _Family:
    """The family of diagonal covariances with independent entries.

    **Arguments:** make: (parameter, ..) -> the law of the entries, where each parameter is a list with one value
    for each coordinate; names: the names of the parameters.
    """
    return _Family(lambda table: DiagonalLaw(make(*[table.coordinates(name) for name in names])), names)


def _wishart(table: LawTable) -> SampledLaw:
    assert table.mean is not None and table.degrees is not None
    return SampledLaw(WishartDraw(table.mean, table.degrees), table.samples or _SAMPLES, table.seed or 0)


_SAMPLES = 1024
_FAMILIES = {
    "exponential": _independent(lambda rate: covariance_laws.Gamma(1.0, rate), "rate"),
    "gamma": _independent(covariance_laws.Gamma, "shape", "rate"),
    "uniform": _independent(covariance_laws.Uniform, "low", "high"),
    "log-normal": _independent(covariance_laws.LogNormal, "location", "spread"),
    "discrete": _independent(covariance_laws.Discrete, "values", "probabilities"),
    "deterministic": _independent(
        lambda values: covariance_laws.Discrete([[x] for x in values], [[1.0]] * len(values)), "eigenvalues"
    ),
    "moments": _independent(covariance_laws.Moments, "first", "second", "third"),
    "wishart": _Family(_wishart, ("mean", "degrees"), ("samples", "seed")),
}


def _length(value: object) -> int:
    return len(value) if isinstance(value, tuple) else 1
