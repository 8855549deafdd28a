"""Problem files: the TOML form of task, model, start, loss and flow."""

from flowsim._core.checks import ProblemError as ProblemError
from flowsim.problem.specification import Problem as Problem
from flowsim.problem.specification import ProblemSpec as ProblemSpec
from flowsim.problem.specification import differing_field as differing_field
from flowsim.problem.specification import spec_of as spec_of
