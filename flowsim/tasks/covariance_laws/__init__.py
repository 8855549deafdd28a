"""Laws of a random covariance Lambda_tau, of which every prompt has an independent draw."""

from flowsim.tasks.covariance_laws.base import AbstractCoordinates as AbstractCoordinates
from flowsim.tasks.covariance_laws.base import AbstractCovarianceLaw as AbstractCovarianceLaw
from flowsim.tasks.covariance_laws.coordinates import Discrete as Discrete
from flowsim.tasks.covariance_laws.coordinates import Gamma as Gamma
from flowsim.tasks.covariance_laws.coordinates import LogNormal as LogNormal
from flowsim.tasks.covariance_laws.coordinates import Moments as Moments
from flowsim.tasks.covariance_laws.coordinates import Uniform as Uniform
from flowsim.tasks.covariance_laws.diagonal import DiagonalLaw as DiagonalLaw
from flowsim.tasks.covariance_laws.sampled import SampledLaw as SampledLaw
from flowsim.tasks.covariance_laws.sampled import WishartDraw as WishartDraw
