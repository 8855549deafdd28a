"""Audits: claims judged on their own problems, what is finished kept, on one process or many."""

from flowsim.experiments.audit.judging import Entry as Entry
from flowsim.experiments.audit.judging import evidence_of as evidence_of
from flowsim.experiments.audit.judging import judge_all as judge_all
from flowsim.experiments.audit.kept import Kept as Kept
