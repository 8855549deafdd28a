"""Certificates of claims: attempts to find one within a time limit, the folder in which a run keeps certificates,
and the record of an audit's certificates.
"""

from flowsim.experiments.certification.attempts import certification as certification
from flowsim.experiments.certification.attempts import certified as certified
from flowsim.experiments.certification.kept import Certificates as Certificates
from flowsim.experiments.certification.kept import ContradictionError as ContradictionError
from flowsim.experiments.certification.ledger import COUNTEREXAMPLE as COUNTEREXAMPLE
from flowsim.experiments.certification.ledger import with_certificates as with_certificates
from flowsim.experiments.certification.record import DOCS as DOCS
from flowsim.experiments.certification.record import Record as Record
from flowsim.experiments.certification.record import counterexample_of as counterexample_of
from flowsim.experiments.certification.record import key_of as key_of
