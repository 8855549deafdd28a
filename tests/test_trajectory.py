"""A trajectory that was written is read back whole, whatever model of flowsim's it is of."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close

from flowsim import models
from flowsim.flow.trajectory import Certificates, Settings, Status, Trajectory
from flowsim.models import (
    Decoder,
    DiagonalLayers,
    FactoredMultiHeadAttention,
    GradientDescentStep,
    LinearAttention,
    LinearTransformerBlock,
    LoopedAttention,
    MaskedAttention,
    MergedHeads,
    MultiHeadAttention,
    MultiLayerAttention,
    ScalarLayers,
    ScalarLoop,
    SeparateHeads,
    SoftmaxAttention,
    SpectralAttention,
    TokenHeads,
    TwoLayerNetwork,
)
from flowsim.tasks import SpectralRegression

A = np.array([[1.0, 0.5], [0.5, 2.0]])
MODELS = {
    "linear-attention": LinearAttention(A, 0.5, [1.0, 2.0]),
    "looped": LoopedAttention(A, [1.0, 2.0], loops=3),
    "multi-layer": MultiLayerAttention([A, 2 * A]),
    "free": MultiLayerAttention([A, [[1.0, 2.0], [3.0, 4.0]]], symmetric=False),
    "residual stream": MultiLayerAttention([A, 2 * A], [[[1.0, 2.0], [3.0, 4.0]]]),
    "diagonal layers": DiagonalLayers([[1.0, 2.0]], SpectralRegression([1.0, 3.0], 5)),
    "scalars": ScalarLayers([1.0, 2.0], [3.0]),
    "looped scalar": ScalarLoop(0.5, loops=7),
    "masked-attention": MaskedAttention([1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
    "softmax": SoftmaxAttention([A], [2 * A], rho=3.0),
    "multi-head": MultiHeadAttention([[1.0, 2.0]], [A], [3.0], 4.0, trainable=True),
    "factored": FactoredMultiHeadAttention([A], [2 * A], [3 * A], [4 * A]),
    "linear block": LinearTransformerBlock(A, 2 * A, 3 * A, 4 * A, 5 * A, 6 * A),
    "merged heads": MergedHeads([1.0], [A], [1.0, 2.0], 3.0, trainable=True),
    "separate heads": SeparateHeads([1.0], [A], [2 * A]),
    "token heads": TokenHeads([[1.0, 2.0, 3.0]], [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]], query_token=True),
    "spectral": SpectralAttention(jnp.asarray([1.0, 2.0]), jnp.asarray(0.5), jnp.asarray(3.0)),
    "gradient descent": GradientDescentStep(0.5, [1.0, 2.0]),
    "two layers": TwoLayerNetwork([1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], "erf"),
}


@functools.cache
def decoder():
    return Decoder(2, embedding=4, layers=1, heads=2, longest=3, key=jax.random.key(0))


class Own(eqx.Module):
    """A user's model."""

    x: jnp.ndarray
    size: int = eqx.field(static=True)


def path(model):
    """A trajectory along which every weight grows in proportion to 1 + t."""
    t = jnp.asarray([0.0, 0.5, 2.0])
    weights, rest = eqx.partition(model, eqx.is_array)
    grown = jax.vmap(lambda time: jax.tree.map(lambda weight: (1 + time) * weight, weights))(t)
    grown = eqx.combine(grown, rest)
    certificates, settings = Certificates(1e-6, None, 50, 2), Settings("implicit", 1e-9, 1e-12)
    return Trajectory(t, grown, t, t, t, t, certificates, settings, Status.TIME)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_of_flowsim_comes_back_without_a_pattern(name, tmp_path):
    trajectory = path(MODELS[name])
    trajectory.save(tmp_path / "trajectory.npz")
    loaded = Trajectory.load(tmp_path / "trajectory.npz")
    assert_close(loaded, trajectory)
    assert type(loaded.models) is type(MODELS[name])


def test_no_model_of_flowsim_is_left_out():
    own = {type(model) for model in (*MODELS.values(), decoder())}
    assert own == {x for x in vars(models).values() if isinstance(x, type)}


def test_a_decoder_comes_back_with_a_pattern_alone(tmp_path):
    trajectory = path(decoder())
    trajectory.save(tmp_path / "trajectory.npz")
    loaded = Trajectory.load(tmp_path / "trajectory.npz", decoder())
    assert_close(eqx.filter(loaded, eqx.is_array), eqx.filter(trajectory, eqx.is_array))
    assert loaded.models.longest == 3
    with pytest.raises(ValueError, match="like must be a model of the class Decoder, but nothing was given"):
        Trajectory.load(tmp_path / "trajectory.npz")


def test_arrays_beside_the_weights_are_for_other_readers(tmp_path):
    trajectory = path(MODELS["scalars"])
    trajectory.save(tmp_path / "trajectory.npz", {"A": np.ones((3, 2))})
    with np.load(tmp_path / "trajectory.npz", allow_pickle=False) as file:
        np.testing.assert_array_equal(file["A"], np.ones((3, 2)))
    assert_close(Trajectory.load(tmp_path / "trajectory.npz"), trajectory)


def test_each_weight_is_written_under_its_own_name_with_time_first(tmp_path):
    path(MODELS["residual stream"]).save(tmp_path / "trajectory.npz")
    with np.load(tmp_path / "trajectory.npz", allow_pickle=False) as file:
        T = file["t"].size
        assert file["A"].shape == (T, 2, 2, 2) and file["B"].shape == (T, 1, 2, 2)
        assert set(file.files) == {"t", "loss", "excess", "grad_norm_sq", "dissipated", "A", "B", "metadata"}


def test_a_user_s_model_needs_a_pattern_that_fits(tmp_path):
    trajectory = path(Own(jnp.ones(2), 2))
    trajectory.save(tmp_path / "trajectory.npz")
    with pytest.raises(ValueError, match="like must be a model of the class Own, but nothing was given"):
        Trajectory.load(tmp_path / "trajectory.npz")
    with pytest.raises(ValueError, match=r"like must be a model with the weights \['x'\]"):
        Trajectory.load(tmp_path / "trajectory.npz", MODELS["looped"])
    assert_close(Trajectory.load(tmp_path / "trajectory.npz", Own(jnp.zeros(2), 2)), trajectory)
