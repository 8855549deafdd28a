"""A self-contained page with the flows of a grid of problems: sliders, and the plane of two weights."""

from flowsim.report.explore.page import Explorable as Explorable
from flowsim.report.explore.page import explore as explore
from flowsim.report.explore.page import to_explore as to_explore
from flowsim.report.explore.page import write_explored as write_explored
