"""Initial weights of the models, at which a flow starts."""

from flowsim.initialization.deep import balanced_heads as balanced_heads
from flowsim.initialization.deep import diagonal as diagonal
from flowsim.initialization.deep import factored_heads as factored_heads
from flowsim.initialization.deep import gaussian as gaussian
from flowsim.initialization.deep import heads as heads
from flowsim.initialization.deep import linear_block as linear_block
from flowsim.initialization.deep import linear_heads as linear_heads
from flowsim.initialization.deep import masked as masked
from flowsim.initialization.deep import softmax as softmax
from flowsim.initialization.deep import symmetric as symmetric
from flowsim.initialization.single_layer import balanced as balanced
from flowsim.initialization.single_layer import balanced_indefinite as balanced_indefinite
from flowsim.initialization.single_layer import random as random
from flowsim.initialization.single_layer import random_theta as random_theta
from flowsim.initialization.single_layer import scaled_identity as scaled_identity
from flowsim.initialization.single_layer import unbalanced as unbalanced
from flowsim.initialization.single_layer import zeros as zeros
