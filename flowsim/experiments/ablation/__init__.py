"""Ablations: search which of its hypotheses a claim needs, and which bounds of its spaces of problems."""

from flowsim.experiments.ablation.result import FILE as FILE
from flowsim.experiments.ablation.result import Ablation as Ablation
from flowsim.experiments.ablation.result import AbstractRow as AbstractRow
from flowsim.experiments.ablation.search import ablate as ablate
