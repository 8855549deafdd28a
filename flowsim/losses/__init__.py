"""Population losses, in exact form or as averages over samples, and empirical losses."""

from flowsim.losses.base import AbstractPopulationLoss as AbstractPopulationLoss
from flowsim.losses.base import FunctionLoss as FunctionLoss
from flowsim.losses.base import MinimumKind as MinimumKind
from flowsim.losses.deep.diagonal_layers import DiagonalLayersLoss as DiagonalLayersLoss
from flowsim.losses.deep.gaussian_network import GaussianNetworkLoss as GaussianNetworkLoss
from flowsim.losses.deep.multi_layer import LoopedLoss as LoopedLoss
from flowsim.losses.deep.multi_layer import MultiLayerLoss as MultiLayerLoss
from flowsim.losses.deep.scalar_layers import ScalarLayersLoss as ScalarLayersLoss
from flowsim.losses.deep.scalar_layers import ScalarLoopLoss as ScalarLoopLoss
from flowsim.losses.deep.scalar_layers import Speeds as Speeds
from flowsim.losses.deep.scalar_layers import restricted_speeds as restricted_speeds
from flowsim.losses.empirical import EmpiricalLoss as EmpiricalLoss
from flowsim.losses.finite import FiniteLoss as FiniteLoss
from flowsim.losses.one_layer.attention import AttentionLoss as AttentionLoss
from flowsim.losses.one_layer.masked_attention import MaskedAttentionLoss as MaskedAttentionLoss
from flowsim.losses.one_layer.multi_head import MultiHeadLoss as MultiHeadLoss
from flowsim.losses.one_layer.random_covariance import RandomCovarianceLoss as RandomCovarianceLoss
from flowsim.losses.one_layer.single_layer import LinearAttentionLoss as LinearAttentionLoss
from flowsim.losses.one_layer.spectral import SpectralAttentionLoss as SpectralAttentionLoss
from flowsim.losses.reparametrized import Reparametrized as Reparametrized
from flowsim.losses.sampled.monte_carlo import MonteCarloLoss as MonteCarloLoss
