"""Searches over the problems that a claim speaks of: for one that breaks it, and for its best constant."""

from flowsim.search.counterexample import Counterexample as Counterexample
from flowsim.search.refutation import Refutation as Refutation
from flowsim.search.refutation import refute as refute
from flowsim.search.sharpening import Growth as Growth
from flowsim.search.sharpening import Sharpening as Sharpening
from flowsim.search.sharpening import sharpen as sharpen
