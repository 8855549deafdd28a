"""The types of fields in problem files. Errors quote their descriptions."""

from typing import Annotated

from msgspec import Meta

Number = Annotated[float, Meta(description="a number")]
Positive = Annotated[float, Meta(gt=0, description="a positive number")]
Tolerance = Annotated[float, Meta(ge=1e-14, lt=1, description="at least 1e-14 and below 1")]
Nonnegative = Annotated[float, Meta(ge=0, description="a number of at least 0")]
Threshold = Annotated[float, Meta(ge=0, lt=1, description="at least 0 and below 1")]
Count = Annotated[int, Meta(ge=1, description="a whole number of at least 1")]
Length = Annotated[int | float, Meta(description="a whole number of at least 1")]
Ratio = Annotated[float, Meta(ge=1, description="a number of at least 1")]
Seed = Annotated[int, Meta(ge=0, lt=2**32, description="a whole number of at least 0 and below 2^32")]
Word = Annotated[str, Meta(description="a word in quotation marks")]
Flag = Annotated[bool, Meta(description="true or false")]
Vector = Annotated[tuple[float, ...], Meta(description="a list of numbers")]
Matrix = Annotated[tuple[tuple[float, ...], ...], Meta(description="a matrix (a list of rows)")]
Matrices = Annotated[
    tuple[tuple[float | tuple[float, ...], ...], ...],
    Meta(description="a matrix (a list of rows), or a list of them for a model of several layers or heads"),
]
VectorOrMatrix = Annotated[
    tuple[float | tuple[float, ...], ...],
    Meta(description="a list of numbers, or a list of rows for a model of several heads"),
]
NumberOrVector = Annotated[float, Meta(description="a number")] | Vector
