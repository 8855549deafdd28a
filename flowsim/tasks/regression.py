"""Laws of a prompt of linear regression: distributions of covariates, weights and labels."""

import functools
from collections.abc import Iterable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray

from flowsim._core import checks
from flowsim.tasks.covariance_laws import AbstractCovarianceLaw

LAWS_OF_WEIGHTS = ("isotropic", "inverse-covariance")
_OPTIONS = ("label_noise", "query_covariance", "weight", "prior_mean", "prior_covariance", "length_law")
_MASS = 1e-12  # how far the sum of rounded probabilities may be from 1


class Prompt(eqx.Module):
    """One prompt: labelled context examples and a query without its label.

    **Fields:** inputs: (N, d) rows x_i; labels: (N,) y_i; query: (d,) x_query.
    """

    inputs: Float[Array, "N d"]
    labels: Float[Array, " N"]
    query: Float[Array, " d"]


def _law_of_weights(word: str) -> str:
    if word not in LAWS_OF_WEIGHTS:
        expected = f"one of {', '.join(LAWS_OF_WEIGHTS)}"
        checks.refuse("weights", expected, f'it is "{word}"{checks.nearest(word, LAWS_OF_WEIGHTS)}')
    return word


class LengthLaw(eqx.Module):
    """A law of the number of examples in a prompt.

    **Arguments:** lengths: (m,) whole numbers of at least 1, or infinity; probabilities: (m,) at least 0, with sum
    1; by default all lengths are equally likely.

    **Raises:** `ValueError` naming the argument.
    """

    lengths: Float[Array, " m"]
    probabilities: Float[Array, " m"]

    def __init__(self, lengths: ArrayLike | Iterable, probabilities: ArrayLike | Iterable | None = None):
        given = np.atleast_1d(np.asarray(list(lengths) if isinstance(lengths, Iterable) else lengths, dtype=float))
        if not given.size:
            checks.refuse("lengths", "at least one length", "there is none")
        self.lengths = jnp.stack([checks.context_length("lengths", length) for length in given])
        equal = np.full(given.size, 1 / given.size)
        self.probabilities = checks.as_array(
            "probabilities", equal if probabilities is None else probabilities, (given.size,)
        )
        if (least := float(np.min(self.probabilities))) < 0:
            checks.refuse("probabilities", "numbers of at least 0", f"the least is {least:g}")
        if abs((total := float(np.sum(self.probabilities))) - 1) > _MASS:
            checks.refuse("probabilities", "numbers that add up to 1", f"their sum is {total:.12g}")

    def inverse(self, power: int) -> Float[Array, ""]:
        """E[N^-power], where N is the number of examples."""
        return self.probabilities @ self.lengths**-power


class LinearRegression(eqx.Module):
    """Linear regression prompts with a fixed covariance. The default options give the prompts on which models are
    trained.

    x_i ~ N(0, Lambda), x_query ~ N(0, Lambda_query) and w are independent. The labels of the context and of the
    query are y = <w, x> + label_noise N(0, 1). By default w ~ N(0, I).

    **Arguments:**

    - covariance: (d, d) Lambda, symmetric positive definite.
    - context_length: the number of examples, a whole number of at least 1, or infinity for the exact limit.
    - label_noise: the standard deviation of the label noise.
    - query_covariance: (d, d) Lambda_query, default Lambda (a query shift).
    - weight: (d,) one w for every prompt (a task shift).
    - weights: "isotropic" for w ~ N(w*, Sigma_w), "inverse-covariance" for w ~ N(0, Lambda^-1).
    - prior_mean: (d,) w*, default 0.
    - prior_covariance: (d, d) Sigma_w, symmetric positive semidefinite, default I.
    - length_law: a law of the number of examples. The field ``context_length`` is then 1/E[1/N].

    The fields of optional arguments that are not given are None.

    **Raises:** `ValueError` naming the argument.
    """

    covariance: Float[Array, "d d"]
    context_length: Float[Array, ""]
    label_noise: Float[Array, ""] | None
    query_covariance: Float[Array, "d d"] | None
    weight: Float[Array, " d"] | None
    prior_mean: Float[Array, " d"] | None
    prior_covariance: Float[Array, "d d"] | None
    length_law: LengthLaw | None
    weights: str = eqx.field(static=True)

    def __init__(
        self,
        covariance: ArrayLike | Iterable,
        context_length: ArrayLike | None = None,
        *,
        label_noise: ArrayLike = 0.0,
        query_covariance: ArrayLike | Iterable | None = None,
        weight: ArrayLike | Iterable | None = None,
        weights: str = "isotropic",
        prior_mean: ArrayLike | Iterable | None = None,
        prior_covariance: ArrayLike | Iterable | None = None,
        length_law: LengthLaw | None = None,
    ):
        self.weights = _law_of_weights(weights)
        self.covariance = checks.positive_definite("covariance", covariance)
        self.length_law = length_law
        if length_law is not None:
            self.context_length = 1 / length_law.inverse(1)
        elif context_length is not None:
            self.context_length = checks.context_length("context_length", context_length)
        else:
            checks.refuse("context_length", "given, or a length_law", "neither is given")
        noise = checks.nonnegative("label_noise", label_noise)
        # The argument is tested, not `noise`: under a transformation even a constant array is traced.
        self.label_noise = None if checks.is_concrete(label_noise) and np.all(np.asarray(label_noise) == 0) else noise
        d = self.dimension
        self.query_covariance = None
        if query_covariance is not None:
            square = checks.as_array("query_covariance", query_covariance, (d, d))
            self.query_covariance = checks.positive_definite("query_covariance", square)
        self.weight = None if weight is None else checks.as_array("weight", weight, (d,))
        self.prior_mean = None if prior_mean is None else checks.as_array("prior_mean", prior_mean, (d,))
        self.prior_covariance = None
        if prior_covariance is not None:
            square = checks.as_array("prior_covariance", prior_covariance, (d, d))
            self.prior_covariance = checks.positive_definite("prior_covariance", square, semi=True)
        prior = {"prior_mean": prior_mean, "prior_covariance": prior_covariance}
        for name, given in {"weight": weight, **prior}.items():
            if given is not None and weights != "isotropic":
                checks.refuse(name, f'left out with weights = "{weights}"', "it is given")
        for name, given in prior.items():
            if weight is not None and given is not None:
                checks.refuse(name, "left out with a fixed weight", "it is given")

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.covariance.shape[-1]

    @property
    def mean_covariance(self) -> Float[Array, "d d"]:
        """The covariance Lambda, (d, d), of the context."""
        return self.covariance

    @property
    def weight_mean(self) -> Float[Array, " d"]:
        """The mean E w, (d,)."""
        if self.weight is not None:
            return self.weight
        return jnp.zeros(self.dimension) if self.prior_mean is None else self.prior_mean

    @property
    def weight_covariance(self) -> Float[Array, "d d"]:
        """The covariance of w, (d, d)."""
        identity = jnp.eye(self.dimension)
        if self.weight is not None:
            return jnp.zeros_like(identity)
        if self.prior_covariance is not None:
            return self.prior_covariance
        return identity if self.weights == "isotropic" else jnp.linalg.solve(self.covariance, identity)

    @property
    def weight_energy(self) -> Float[Array, "d d"]:
        """The second moment E[w w^T], (d, d)."""
        return self.weight_covariance + jnp.outer(self.weight_mean, self.weight_mean)

    @property
    def inverse_square_length(self) -> Float[Array, ""]:
        """E[1/N^2], where N is the number of examples."""
        return self.context_length**-2 if self.length_law is None else self.length_law.inverse(2)

    @property
    def shifts(self) -> tuple[str, ...]:
        """The names of the options that are set, and not None: label_noise, query_covariance, weight, prior_mean,
        ..

        A covariate shift is not among them, since it only changes ``covariance``.
        """
        return tuple(name for name in _OPTIONS if getattr(self, name) is not None)

    def scaled(self, c: ArrayLike) -> "LinearRegression":
        """The task with all covariates multiplied by c: its covariances are c^2 Lambda and c^2 Lambda_query.

        With "inverse-covariance" weights w ~ N(0, (c^2 Lambda)^-1), so that the labels keep their law.

        **Raises:** `ValueError` unless c > 0.
        """
        square = checks.positive("c", c) ** 2
        return LinearRegression(
            square * self.covariance,
            self.context_length,
            length_law=self.length_law,
            label_noise=0.0 if self.label_noise is None else self.label_noise,
            query_covariance=None if self.query_covariance is None else square * self.query_covariance,
            weight=self.weight,
            weights=self.weights,
            prior_mean=self.prior_mean,
            prior_covariance=self.prior_covariance,
        )

    @eqx.filter_jit
    def gamma(self) -> Float[Array, "d d"]:
        """The matrix Gamma = (1 + 1/N) Lambda + (tr Lambda / N) I, (d, d), for which E[Lambdahat^2] = Gamma Lambda.

        Lambdahat = (1/N) sum x_i x_i^T is the context's sample covariance.
        """
        inverse_n = 1 / self.context_length
        identity = jnp.eye(self.dimension)
        return (1 + inverse_n) * self.covariance + inverse_n * jnp.trace(self.covariance) * identity

    def sample(self, key: PRNGKeyArray, dimension: ArrayLike | None = None) -> tuple[Prompt, Float[Array, ""]]:
        """Draw one prompt and the query's label.

        **Arguments:** dimension: how many of the first coordinates of the covariates are used, default all. The
        others are set to zero before the labels are computed. The number may be traced.

        **Raises:** `ValueError` if the context is infinite, its length is traced or there is a law of lengths.
        """
        if self.length_law is not None:
            checks.refuse("context_length", "one number to sample a prompt", "it is a law of lengths")
        extra = {name: getattr(self, name) for name in self.shifts}
        length = _known_length(self.context_length)
        return _draw(key, self.covariance, length, self.weights, dimension=dimension, **extra)


def _known_length(context_length: Float[Array, ""] | Float[np.ndarray, ""]) -> int:
    """N as an int, refused if it is traced or infinite, since no prompt of this length can then be drawn."""
    if not checks.is_concrete(context_length) or np.isinf(float(context_length)):
        checks.refuse("context_length", "a known finite number to sample a prompt", f"it is {context_length}")
    return int(float(context_length))


@functools.partial(jax.jit, static_argnums=(2, 3))
def _draw(
    key: PRNGKeyArray,
    covariance: Float[Array, "d d"],
    length: int,
    weights: str = "isotropic",
    label_noise: Float[Array, ""] | None = None,
    query_covariance: Float[Array, "d d"] | None = None,
    weight: Float[Array, " d"] | None = None,
    prior_mean: Float[Array, " d"] | None = None,
    prior_covariance: Float[Array, "d d"] | None = None,
    dimension: ArrayLike | None = None,
) -> tuple[Prompt, Float[Array, ""]]:
    normals = jax.random.normal(key, (length + 2, covariance.shape[0]))
    root = jnp.linalg.cholesky(covariance)
    inputs = normals[1:] @ root.T
    if weight is None:
        drawn = normals[0]
        if weights == "inverse-covariance":
            drawn = solve_triangular(root.T, drawn)
        if prior_covariance is not None:
            # By eigenvalues, since Cholesky's factor needs a covariance without zero eigenvalues.
            values, vectors = jnp.linalg.eigh(prior_covariance)
            drawn = vectors @ (jnp.sqrt(jnp.maximum(values, 0.0)) * drawn)
        weight = drawn if prior_mean is None else drawn + prior_mean
    if query_covariance is not None:
        inputs = inputs.at[-1].set(jnp.linalg.cholesky(query_covariance) @ normals[-1])
    if dimension is not None:
        inputs = jnp.where(jnp.arange(inputs.shape[1]) < dimension, inputs, 0.0)
    labels = inputs @ weight
    if label_noise is not None:
        # Another key, so that the prompt is the noiseless prompt of the same key plus noise.
        labels = labels + label_noise * jax.random.normal(jax.random.fold_in(key, 1), labels.shape)
    return Prompt(inputs[:-1], labels[:-1], inputs[-1]), labels[-1]


def check_regression(task: object, *, but: str = "", isotropic: bool = False) -> None:
    """Refuse a task that is not a `LinearRegression` with the law of training prompts.

    **Arguments:** but: an option of `LinearRegression` that is allowed nevertheless; isotropic: whether the law of
    the weights has to be "isotropic".

    **Raises:** `ProblemError`
    """
    if not isinstance(task, LinearRegression):
        checks.refuse("task", "a LinearRegression: the exact form needs one fixed covariance", f"got {task!r:.60}")
    if given := [name for name in task.shifts if name != but]:
        without = ", ".join(name for name in _OPTIONS if name != but)
        checks.refuse("task", f"one of training, without {without}", f"it has a {given[0]}")
    if isotropic and task.weights != "isotropic":
        checks.refuse("task", 'one with weights = "isotropic"', f'its weights are "{task.weights}"')


class RandomCovarianceRegression(eqx.Module):
    """Noiseless linear regression prompts, each with its own random covariance Lambda_tau.

    Given Lambda_tau, the covariates x_i and x_query are N(0, Lambda_tau), w ~ N(0, I) and y_i = <w, x_i>.

    **Arguments:** law: the law of Lambda_tau; context_length: N, a whole number of at least 1, or infinity for the
    exact limit.

    **Raises:** `ValueError` naming the argument.
    """

    law: AbstractCovarianceLaw
    context_length: Float[Array, ""]

    def __init__(self, law: AbstractCovarianceLaw, context_length: ArrayLike):
        if not isinstance(law, AbstractCovarianceLaw):
            checks.refuse("law", "a law of covariances, such as DiagonalLaw(Gamma(shape, rate))", f"got {law!r:.60}")
        self.law = law
        self.context_length = checks.context_length("context_length", context_length)

    @property
    def dimension(self) -> int:
        """The dimension d."""
        return self.law.dimension

    @property
    def mean_covariance(self) -> Float[Array, "d d"]:
        """The mean E Lambda_tau, (d, d)."""
        return self.law.expectation(lambda Lambda: Lambda)

    def scaled(self, c: ArrayLike) -> "RandomCovarianceRegression":
        """The task with all covariates multiplied by c: its covariances are c^2 Lambda_tau.

        **Raises:** `ValueError` unless c > 0.
        """
        return RandomCovarianceRegression(self.law.scaled(checks.positive("c", c) ** 2), self.context_length)

    def sample(self, key: PRNGKeyArray, dimension: ArrayLike | None = None) -> tuple[Prompt, Float[Array, ""]]:
        """Draw a covariance, then a prompt with this covariance and the query's label <w, x_query>.

        **Arguments:** dimension: as in `LinearRegression.sample`.

        **Raises:** `ValueError` if the context is infinite, its length is traced or the law cannot be drawn from.
        """
        law_key, prompt_key = jax.random.split(key)
        length = _known_length(self.context_length)
        return _draw(prompt_key, self.law.sample(law_key), length, dimension=dimension)


class SpectralRegression(eqx.Module):
    """The prompts of `LinearRegression`, given by the spectrum of Lambda, for models that share its eigenvectors.

    No matrix is formed, so the dimension may be a million.

    **Arguments:**

    - eigenvalues: (r,) the eigenvalues of Lambda, positive.
    - context_length: as in `LinearRegression`.
    - multiplicities: (r,) the multiplicities of the eigenvalues, whole numbers of at least 1, default 1.
    - weights: as in `LinearRegression`, but "inverse-covariance" by default.

    **Fields:** the arguments, and dimension: the sum of the multiplicities.

    **Raises:** `ValueError` naming the argument.
    """

    eigenvalues: Float[Array, " r"]
    multiplicities: Float[Array, " r"]
    context_length: Float[Array, ""]
    dimension: int = eqx.field(static=True)
    weights: str = eqx.field(static=True)

    def __init__(
        self,
        eigenvalues: ArrayLike | Iterable,
        context_length: ArrayLike,
        *,
        multiplicities: Iterable[int] | None = None,
        weights: str = "inverse-covariance",
    ):
        self.eigenvalues = checks.as_array("eigenvalues", eigenvalues, (None,))
        r = self.eigenvalues.size
        counts = [1] * r if multiplicities is None else [checks.count("multiplicities", m) for m in multiplicities]
        self.multiplicities = checks.as_array("multiplicities", counts, (r,))
        if not r or float(np.min(self.eigenvalues)) <= 0:
            checks.refuse("eigenvalues", "positive numbers", f"they are {np.asarray(self.eigenvalues).tolist()!s:.60}")
        self.context_length = checks.context_length("context_length", context_length)
        self.dimension = sum(counts)
        self.weights = _law_of_weights(weights)
