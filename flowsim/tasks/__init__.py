"""Laws of prompts: the distributions of covariates, weights, labels and context lengths."""

from flowsim.tasks.joint_law import JointLaw as JointLaw
from flowsim.tasks.multinomial import multinomial_outcomes as multinomial_outcomes
from flowsim.tasks.regression import LAWS_OF_WEIGHTS as LAWS_OF_WEIGHTS
from flowsim.tasks.regression import LengthLaw as LengthLaw
from flowsim.tasks.regression import LinearRegression as LinearRegression
from flowsim.tasks.regression import Prompt as Prompt
from flowsim.tasks.regression import RandomCovarianceRegression as RandomCovarianceRegression
from flowsim.tasks.regression import SpectralRegression as SpectralRegression
