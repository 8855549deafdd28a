"""Models that predict the label of a prompt's query, or of one input. Each holds its weights."""

from flowsim.models.decoder import Decoder as Decoder
from flowsim.models.diagonal_layers import DiagonalLayers as DiagonalLayers
from flowsim.models.heads import MergedHeads as MergedHeads
from flowsim.models.heads import SeparateHeads as SeparateHeads
from flowsim.models.heads import TokenHeads as TokenHeads
from flowsim.models.linear_attention import LinearAttention as LinearAttention
from flowsim.models.linear_attention import SpectralAttention as SpectralAttention
from flowsim.models.masked_attention import MaskedAttention as MaskedAttention
from flowsim.models.multi_head import FactoredMultiHeadAttention as FactoredMultiHeadAttention
from flowsim.models.multi_head import GradientDescentStep as GradientDescentStep
from flowsim.models.multi_head import LinearTransformerBlock as LinearTransformerBlock
from flowsim.models.multi_head import MultiHeadAttention as MultiHeadAttention
from flowsim.models.multi_layer import LoopedAttention as LoopedAttention
from flowsim.models.multi_layer import MultiLayerAttention as MultiLayerAttention
from flowsim.models.scalar_layers import ScalarLayers as ScalarLayers
from flowsim.models.scalar_layers import ScalarLoop as ScalarLoop
from flowsim.models.softmax_attention import SoftmaxAttention as SoftmaxAttention
from flowsim.models.two_layer_network import TwoLayerNetwork as TwoLayerNetwork
