"""What a claim needs: its hypotheses, one and two at a time, and the bounds of its spaces of problems."""

from flowsim.experiments.ablation.result import FILE as FILE
from flowsim.experiments.ablation.result import Ablation as Ablation
from flowsim.experiments.ablation.result import AbstractRow as AbstractRow
from flowsim.experiments.ablation.search import ablate as ablate
