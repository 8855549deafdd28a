"""Figures of a flow with the guarantees of theorems, and figures of verdicts."""

from flowsim.report.plots.bands import loss_band as loss_band
from flowsim.report.plots.dominance import gradient_dominance as gradient_dominance
from flowsim.report.plots.flows import STYLE as STYLE
from flowsim.report.plots.flows import conservation as conservation
from flowsim.report.plots.flows import curve as curve
from flowsim.report.plots.flows import draw_all as draw_all
from flowsim.report.plots.flows import drawing as drawing
from flowsim.report.plots.flows import excess as excess
from flowsim.report.plots.flows import loss as loss
from flowsim.report.plots.flows import pl_ratio as pl_ratio
from flowsim.report.plots.flows import positive as positive
from flowsim.report.plots.flows import save as save
from flowsim.report.plots.flows import scale_condition as scale_condition
from flowsim.report.plots.flows import styled as styled
from flowsim.report.plots.flows import test_risk as test_risk
from flowsim.report.plots.modes import matrices as matrices
from flowsim.report.plots.modes import modes as modes
from flowsim.report.plots.plateaus import staircase as staircase
from flowsim.report.plots.verdicts import of_tightness as of_tightness
from flowsim.report.plots.verdicts import sides as sides
from flowsim.report.plots.verdicts import tightness as tightness
