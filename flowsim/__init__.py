"""flowsim: gradient flows of population losses, and verdicts on what is proved about them.

Importing this package imports nothing heavy and changes no setting; a name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING

from flowsim._core import VERSION

if TYPE_CHECKING:
    from flowsim import initialization as initialization
    from flowsim._core.compiler import setup as setup
    from flowsim.claims import Claim as Claim
    from flowsim.claims import Comparison as Comparison
    from flowsim.claims import Evidence as Evidence
    from flowsim.claims import Family as Family
    from flowsim.claims import Judgement as Judgement
    from flowsim.claims import Plateau as Plateau
    from flowsim.claims import Verdict as Verdict
    from flowsim.claims import Verdicts as Verdicts
    from flowsim.claims import at_least as at_least
    from flowsim.claims import at_most as at_most
    from flowsim.claims import check as check
    from flowsim.claims import citation as citation
    from flowsim.claims import confidence_band as confidence_band
    from flowsim.claims import end_point as end_point
    from flowsim.claims import equal as equal
    from flowsim.claims import find_claims as find_claims
    from flowsim.claims import fit_rate as fit_rate
    from flowsim.claims import least_norm as least_norm
    from flowsim.claims import limit as limit
    from flowsim.claims import plateaus as plateaus
    from flowsim.claims import power_law as power_law
    from flowsim.claims import tends_to as tends_to
    from flowsim.claims import with_probability as with_probability
    from flowsim.claims.declaring import Section as Section
    from flowsim.claims.declaring import claim as claim
    from flowsim.claims.proofs import Enclosure as Enclosure
    from flowsim.claims.proofs import certify as certify
    from flowsim.claims.proofs import enclose as enclose
    from flowsim.claims.spaces import Choice as Choice
    from flowsim.claims.spaces import Each as Each
    from flowsim.claims.spaces import Real as Real
    from flowsim.claims.spaces import Space as Space
    from flowsim.claims.spaces import Whole as Whole
    from flowsim.experiments.ablation import Ablation as Ablation
    from flowsim.experiments.ablation import ablate as ablate
    from flowsim.experiments.run import Run as Run
    from flowsim.experiments.run import run as run
    from flowsim.experiments.search import Counterexample as Counterexample
    from flowsim.experiments.search import Edge as Edge
    from flowsim.experiments.search import Refutation as Refutation
    from flowsim.experiments.search import Sharpening as Sharpening
    from flowsim.experiments.search import edge as edge
    from flowsim.experiments.search import refute as refute
    from flowsim.experiments.search import sharpen as sharpen
    from flowsim.experiments.sweep.maps import Map as Map
    from flowsim.experiments.sweep.maps import sweep as sweep
    from flowsim.flow.descent import gradient_descent as gradient_descent
    from flowsim.flow.gradient_flow import Stop as Stop
    from flowsim.flow.gradient_flow import gradient_flow as gradient_flow
    from flowsim.flow.gradient_flow import reduced_flow as reduced_flow
    from flowsim.flow.risk_curve import risk_along as risk_along
    from flowsim.flow.training import Curriculum as Curriculum
    from flowsim.flow.training import train as train
    from flowsim.flow.trajectory import Status as Status
    from flowsim.flow.trajectory import Trajectory as Trajectory
    from flowsim.initialization import balanced as balanced
    from flowsim.initialization import balanced_indefinite as balanced_indefinite
    from flowsim.initialization import scaled_identity as scaled_identity
    from flowsim.initialization import unbalanced as unbalanced
    from flowsim.losses import AbstractPopulationLoss as AbstractPopulationLoss
    from flowsim.losses import AttentionLoss as AttentionLoss
    from flowsim.losses import DiagonalLayersLoss as DiagonalLayersLoss
    from flowsim.losses import EmpiricalLoss as EmpiricalLoss
    from flowsim.losses import FiniteLoss as FiniteLoss
    from flowsim.losses import FunctionLoss as FunctionLoss
    from flowsim.losses import GaussianNetworkLoss as GaussianNetworkLoss
    from flowsim.losses import LinearAttentionLoss as LinearAttentionLoss
    from flowsim.losses import LoopedLoss as LoopedLoss
    from flowsim.losses import MaskedAttentionLoss as MaskedAttentionLoss
    from flowsim.losses import MonteCarloLoss as MonteCarloLoss
    from flowsim.losses import MultiHeadLoss as MultiHeadLoss
    from flowsim.losses import MultiLayerLoss as MultiLayerLoss
    from flowsim.losses import RandomCovarianceLoss as RandomCovarianceLoss
    from flowsim.losses import Reparametrized as Reparametrized
    from flowsim.losses import ScalarLayersLoss as ScalarLayersLoss
    from flowsim.losses import ScalarLoopLoss as ScalarLoopLoss
    from flowsim.losses import SpectralAttentionLoss as SpectralAttentionLoss
    from flowsim.losses.prompt_risk import risk as risk
    from flowsim.models import Decoder as Decoder
    from flowsim.models import DiagonalLayers as DiagonalLayers
    from flowsim.models import FactoredMultiHeadAttention as FactoredMultiHeadAttention
    from flowsim.models import GradientDescentStep as GradientDescentStep
    from flowsim.models import LinearAttention as LinearAttention
    from flowsim.models import LinearTransformerBlock as LinearTransformerBlock
    from flowsim.models import LoopedAttention as LoopedAttention
    from flowsim.models import MaskedAttention as MaskedAttention
    from flowsim.models import MergedHeads as MergedHeads
    from flowsim.models import MultiHeadAttention as MultiHeadAttention
    from flowsim.models import MultiLayerAttention as MultiLayerAttention
    from flowsim.models import ScalarLayers as ScalarLayers
    from flowsim.models import ScalarLoop as ScalarLoop
    from flowsim.models import SeparateHeads as SeparateHeads
    from flowsim.models import SoftmaxAttention as SoftmaxAttention
    from flowsim.models import SpectralAttention as SpectralAttention
    from flowsim.models import TokenHeads as TokenHeads
    from flowsim.models import TwoLayerNetwork as TwoLayerNetwork
    from flowsim.moments import OnePassSGD as OnePassSGD
    from flowsim.moments import TracePolynomial as TracePolynomial
    from flowsim.moments import wishart_expectation as wishart_expectation
    from flowsim.papers import ALL_CLAIMS as ALL_CLAIMS
    from flowsim.papers import judge as judge
    from flowsim.papers import predictions as predictions
    from flowsim.papers import prompt_lengths as prompt_lengths
    from flowsim.problem import Problem as Problem
    from flowsim.problem import ProblemSpec as ProblemSpec
    from flowsim.report import plots as plots
    from flowsim.report.documents import verdict_table as verdict_table
    from flowsim.report.explore import explore as explore
    from flowsim.tasks import JointLaw as JointLaw
    from flowsim.tasks import LengthLaw as LengthLaw
    from flowsim.tasks import LinearRegression as LinearRegression
    from flowsim.tasks import RandomCovarianceRegression as RandomCovarianceRegression
    from flowsim.tasks import SpectralRegression as SpectralRegression
    from flowsim.tasks import multinomial_outcomes as multinomial_outcomes
    from flowsim.tasks.covariance_laws import DiagonalLaw as DiagonalLaw
    from flowsim.tasks.covariance_laws import SampledLaw as SampledLaw
    from flowsim.tasks.sampling import draw_prompts as draw_prompts

__version__ = VERSION

_HOMES = {
    "flowsim._core.compiler": "setup",
    "flowsim.tasks": (
        "JointLaw LengthLaw LinearRegression RandomCovarianceRegression SpectralRegression multinomial_outcomes"
    ),
    "flowsim.tasks.covariance_laws": "DiagonalLaw SampledLaw",
    "flowsim.tasks.sampling": "draw_prompts",
    "flowsim.models": (
        "Decoder DiagonalLayers FactoredMultiHeadAttention GradientDescentStep LinearAttention "
        "LinearTransformerBlock LoopedAttention MaskedAttention MergedHeads MultiHeadAttention MultiLayerAttention "
        "ScalarLayers ScalarLoop SeparateHeads SoftmaxAttention SpectralAttention "
        "TokenHeads TwoLayerNetwork"
    ),
    "flowsim.moments": "OnePassSGD TracePolynomial wishart_expectation",
    "flowsim.losses": (
        "AbstractPopulationLoss AttentionLoss DiagonalLayersLoss EmpiricalLoss FiniteLoss FunctionLoss "
        "GaussianNetworkLoss LinearAttentionLoss LoopedLoss MaskedAttentionLoss MonteCarloLoss MultiHeadLoss "
        "MultiLayerLoss RandomCovarianceLoss Reparametrized ScalarLayersLoss ScalarLoopLoss SpectralAttentionLoss"
    ),
    "flowsim.losses.prompt_risk": "risk",
    "flowsim.flow.descent": "gradient_descent",
    "flowsim.initialization": "balanced balanced_indefinite scaled_identity unbalanced",
    "flowsim.flow.gradient_flow": "Stop gradient_flow reduced_flow",
    "flowsim.flow.risk_curve": "risk_along",
    "flowsim.flow.training": "Curriculum train",
    "flowsim.flow.trajectory": "Status Trajectory",
    "flowsim.problem": "Problem ProblemSpec",
    "flowsim.claims": (
        "Claim Comparison Evidence Family Judgement Plateau Verdict Verdicts at_least at_most check citation "
        "confidence_band end_point equal find_claims fit_rate least_norm limit plateaus power_law tends_to "
        "with_probability"
    ),
    "flowsim.claims.declaring": "Section claim",
    "flowsim.claims.proofs": "Enclosure certify enclose",
    "flowsim.claims.spaces": "Choice Each Real Space Whole",
    "flowsim.papers": "ALL_CLAIMS judge predictions prompt_lengths",
    "flowsim.experiments.ablation": "Ablation ablate",
    "flowsim.experiments.run": "Run run",
    "flowsim.experiments.search": "Counterexample Edge Refutation Sharpening edge refute sharpen",
    "flowsim.experiments.sweep.maps": "Map sweep",
    "flowsim.report.documents": "verdict_table",
    "flowsim.report.explore": "explore",
}
_ROOMS = {"plots": "flowsim.report.plots", "initialization": "flowsim.initialization"}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()} | _ROOMS

if not TYPE_CHECKING:  # to a type checker any name would be known
    __all__ = sorted([*_HOME, "__version__"])

    def __getattr__(name: str):
        if name not in _HOME:
            raise AttributeError(f"module 'flowsim' has no attribute '{name}'")
        home = importlib.import_module(_HOME[name])
        return home if name in _ROOMS else getattr(home, name)

    def __dir__() -> list[str]:
        return __all__
