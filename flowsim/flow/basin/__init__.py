"""Proved bounds on the remaining length of a gradient flow that cannot leave a ball in a bowl or a valley of the
loss.
"""

from flowsim.flow.basin.curvature import least_singular_value as least_singular_value
from flowsim.flow.basin.kept import stay_at_zero as stay_at_zero
from flowsim.flow.basin.landscape import Landscape as Landscape
from flowsim.flow.basin.landscape import descends as descends
from flowsim.flow.basin.way import Tail as Tail
from flowsim.flow.basin.way import rests as rests
from flowsim.flow.basin.way import way_to_go as way_to_go
