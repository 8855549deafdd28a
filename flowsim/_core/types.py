"""Type aliases. In the shapes of arrays d is the dimension of the covariates and T the number of output times."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Array, Float, Int

Scalar = Float[Array, ""]
Vector = Float[Array, " d"]
Matrix = Float[Array, "d d"]
Series = Float[Array, " T"]
Seed = int | Int[Array, ""]
Tables = Mapping[str, Any]  # nested, as TOML gives them
Values = Mapping[str, Any]  # fields of a problem, by dotted name
Document = dict[str, Any]  # a JSON object, or TOML tables that may be changed
Params = dict[str, Any]  # parameters of an operation that JAX traced
Options = dict[str, Any]  # arguments of a function, by name
ScalarLike = float | Scalar  # a number that may be traced
