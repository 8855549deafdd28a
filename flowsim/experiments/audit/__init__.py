"""Audits: claims judged on their problems, by one process or many. Finished verdicts are saved and used again."""

from flowsim.experiments.audit.judging import Entry as Entry
from flowsim.experiments.audit.judging import entry_of as entry_of
from flowsim.experiments.audit.judging import evidence_of as evidence_of
from flowsim.experiments.audit.judging import judge_all as judge_all
from flowsim.experiments.audit.kept import Kept as Kept
