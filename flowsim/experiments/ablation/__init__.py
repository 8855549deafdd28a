"""Ablations: searches for the hypotheses that a claim needs, and for the bounds of its spaces of problems that it
needs.
"""

from flowsim.experiments.ablation.result import FILE as FILE
from flowsim.experiments.ablation.result import Ablation as Ablation
from flowsim.experiments.ablation.result import AbstractRow as AbstractRow
from flowsim.experiments.ablation.search import ablate as ablate
