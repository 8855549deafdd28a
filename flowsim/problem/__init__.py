"""Problems: a task, model, start, loss and flow, described by a TOML file or by a user's function."""

from flowsim._core.checks import ProblemError as ProblemError
from flowsim.problem.base import AbstractSpec as AbstractSpec
from flowsim.problem.base import Problem as Problem
from flowsim.problem.specification import ProblemSpec as ProblemSpec
from flowsim.problem.specification import differing_field as differing_field
from flowsim.problem.specification import known_fields as known_fields
from flowsim.problem.specification import signed as signed
from flowsim.problem.specification import spec_of as spec_of
from flowsim.problem.specification import unnamed as unnamed
