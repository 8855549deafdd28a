"""flowsim: gradient flows of population losses, and verdicts on what is proved about them.

Importing this package imports nothing heavy and changes no setting; a name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowsim.analysis import ALL_CLAIMS as ALL_CLAIMS
    from flowsim.analysis import Claim as Claim
    from flowsim.analysis import Comparison as Comparison
    from flowsim.analysis import Evidence as Evidence
    from flowsim.analysis import Judgement as Judgement
    from flowsim.analysis import Relation as Relation
    from flowsim.analysis import Verdict as Verdict
    from flowsim.analysis import at_least as at_least
    from flowsim.analysis import at_most as at_most
    from flowsim.analysis import check as check
    from flowsim.analysis import confidence_band as confidence_band
    from flowsim.analysis import end_point as end_point
    from flowsim.analysis import equal as equal
    from flowsim.analysis import find_claims as find_claims
    from flowsim.analysis import fit_rate as fit_rate
    from flowsim.analysis import judge as judge
    from flowsim.analysis.spaces import Choice as Choice
    from flowsim.analysis.spaces import Each as Each
    from flowsim.analysis.spaces import Real as Real
    from flowsim.analysis.spaces import Space as Space
    from flowsim.analysis.spaces import Whole as Whole
    from flowsim.covariance_laws import DiagonalLaw as DiagonalLaw
    from flowsim.covariance_laws import SampledLaw as SampledLaw
    from flowsim.flow import Stop as Stop
    from flowsim.flow import gradient_descent as gradient_descent
    from flowsim.flow import gradient_flow as gradient_flow
    from flowsim.flow import reduced_flow as reduced_flow
    from flowsim.guarantees import predictions as predictions
    from flowsim.joint_law import JointLaw as JointLaw
    from flowsim.losses import AbstractPopulationLoss as AbstractPopulationLoss
    from flowsim.losses import DiagonalLayersLoss as DiagonalLayersLoss
    from flowsim.losses import FunctionLoss as FunctionLoss
    from flowsim.losses import LinearAttentionLoss as LinearAttentionLoss
    from flowsim.losses import LoopedLoss as LoopedLoss
    from flowsim.losses import MaskedAttentionLoss as MaskedAttentionLoss
    from flowsim.losses import MonteCarloLoss as MonteCarloLoss
    from flowsim.losses import MultiHeadLoss as MultiHeadLoss
    from flowsim.losses import MultiLayerLoss as MultiLayerLoss
    from flowsim.losses import RandomCovarianceLoss as RandomCovarianceLoss
    from flowsim.losses import ScalarLayersLoss as ScalarLayersLoss
    from flowsim.losses import ScalarLoopLoss as ScalarLoopLoss
    from flowsim.maps import Map as Map
    from flowsim.maps import sweep as sweep
    from flowsim.models import Decoder as Decoder
    from flowsim.models import DiagonalLayers as DiagonalLayers
    from flowsim.models import FactoredMultiHeadAttention as FactoredMultiHeadAttention
    from flowsim.models import GradientDescentStep as GradientDescentStep
    from flowsim.models import LinearAttention as LinearAttention
    from flowsim.models import LinearTransformerBlock as LinearTransformerBlock
    from flowsim.models import LoopedAttention as LoopedAttention
    from flowsim.models import MaskedAttention as MaskedAttention
    from flowsim.models import MultiHeadAttention as MultiHeadAttention
    from flowsim.models import MultiLayerAttention as MultiLayerAttention
    from flowsim.models import ScalarLayers as ScalarLayers
    from flowsim.models import ScalarLoop as ScalarLoop
    from flowsim.models import SoftmaxAttention as SoftmaxAttention
    from flowsim.moments import TracePolynomial as TracePolynomial
    from flowsim.moments import wishart_expectation as wishart_expectation
    from flowsim.problem import Problem as Problem
    from flowsim.problem import ProblemSpec as ProblemSpec
    from flowsim.prompt_risk import risk as risk
    from flowsim.prompt_risk import risk_along as risk_along
    from flowsim.report import citation as citation
    from flowsim.report import verdict_table as verdict_table
    from flowsim.risk_bounds import prompt_lengths as prompt_lengths
    from flowsim.search import Counterexample as Counterexample
    from flowsim.search import Refutation as Refutation
    from flowsim.search import Sharpening as Sharpening
    from flowsim.search import refute as refute
    from flowsim.search import sharpen as sharpen
    from flowsim.tasks import LinearRegression as LinearRegression
    from flowsim.tasks import RandomCovarianceRegression as RandomCovarianceRegression
    from flowsim.tasks import SpectralRegression as SpectralRegression
    from flowsim.training import Curriculum as Curriculum
    from flowsim.training import train as train
    from flowsim.trajectory import Status as Status
    from flowsim.trajectory import Trajectory as Trajectory

__version__ = "0.1.0"

_HOMES = {
    "flowsim.analysis": (
        "ALL_CLAIMS Claim Comparison Evidence Judgement Relation Verdict at_least at_most check "
        "confidence_band end_point equal find_claims fit_rate judge"
    ),
    "flowsim.analysis.spaces": "Choice Each Real Space Whole",
    "flowsim.covariance_laws": "DiagonalLaw SampledLaw",
    "flowsim.flow": "Stop gradient_descent gradient_flow reduced_flow",
    "flowsim.joint_law": "JointLaw",
    "flowsim.losses": (
        "AbstractPopulationLoss DiagonalLayersLoss FunctionLoss LinearAttentionLoss LoopedLoss MaskedAttentionLoss "
        "MonteCarloLoss MultiHeadLoss MultiLayerLoss RandomCovarianceLoss ScalarLayersLoss ScalarLoopLoss"
    ),
    "flowsim.maps": "Map sweep",
    "flowsim.models": (
        "Decoder DiagonalLayers FactoredMultiHeadAttention GradientDescentStep LinearAttention "
        "LinearTransformerBlock LoopedAttention MaskedAttention MultiHeadAttention MultiLayerAttention ScalarLayers "
        "ScalarLoop SoftmaxAttention"
    ),
    "flowsim.moments": "TracePolynomial wishart_expectation",
    "flowsim.guarantees": "predictions",
    "flowsim.problem": "Problem ProblemSpec",
    "flowsim.report": "citation verdict_table",
    "flowsim.prompt_risk": "risk risk_along",
    "flowsim.risk_bounds": "prompt_lengths",
    "flowsim.search": "Counterexample Refutation Sharpening refute sharpen",
    "flowsim.tasks": "LinearRegression RandomCovarianceRegression SpectralRegression",
    "flowsim.training": "Curriculum train",
    "flowsim.trajectory": "Status Trajectory",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'flowsim' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
