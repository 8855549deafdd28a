"""Certificates of claims: what is tried and for how long, and the folder of a run in which they are kept."""

from flowsim.experiments.certification.attempts import certification as certification
from flowsim.experiments.certification.attempts import certified as certified
from flowsim.experiments.certification.kept import Certificates as Certificates
from flowsim.experiments.certification.kept import ContradictionError as ContradictionError
from flowsim.experiments.certification.ledger import counterexample_of as counterexample_of
from flowsim.experiments.certification.ledger import refuted as refuted
