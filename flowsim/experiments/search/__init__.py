"""Searches over the problems that a claim covers: for a counterexample, and for the best constant."""

from flowsim.experiments.search.counterexample import Counterexample as Counterexample
from flowsim.experiments.search.edge import Edge as Edge
from flowsim.experiments.search.edge import edge as edge
from flowsim.experiments.search.refutation import Refutation as Refutation
from flowsim.experiments.search.refutation import refute as refute
from flowsim.experiments.search.sharpening import Growth as Growth
from flowsim.experiments.search.sharpening import Sharpening as Sharpening
from flowsim.experiments.search.sharpening import sharpen as sharpen
