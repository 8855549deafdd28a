"""Proofs about gradient flows: enclosures of flows, certificates, and checkers that need only python-flint."""

from flowsim.claims.proofs.certificate import certify as certify
from flowsim.claims.proofs.certificate import check as check
from flowsim.claims.proofs.path import Enclosure as Enclosure
from flowsim.claims.proofs.path import FollowedFlow as FollowedFlow
from flowsim.claims.proofs.path import OpenError as OpenError
from flowsim.claims.proofs.path import enclose as enclose
