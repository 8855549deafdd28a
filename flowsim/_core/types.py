"""Arrays that have a name: d is the dimension of the covariates, T the number of output times."""

from jaxtyping import Array, Float, Int

Scalar = Float[Array, ""]
Vector = Float[Array, " d"]
Matrix = Float[Array, "d d"]
Series = Float[Array, " T"]
Seed = int | Int[Array, ""]
