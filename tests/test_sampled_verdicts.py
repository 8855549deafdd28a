"""Claims of every paper judged by prompts: the verdicts of the exact loss, or unresolved, never the opposite."""

import dataclasses

import pytest

from flowsim.claims import Judgement
from flowsim.experiments.audit import judge_all
from flowsim.papers import ALL_CLAIMS

pytestmark = pytest.mark.slow

SAMPLED = [
    "flow.rtol=1e-6",
    "loss.kind=monte-carlo",
    "loss.samples=256",
]
SHORT = ["flow.t1=5.0"]


def verdicts(identifier: str, problem: str, overrides: list[str]) -> list[Judgement]:
    """Of both forms of a claim, on one of their problems."""
    chosen = [
        dataclasses.replace(claim, problems=tuple(table for table in claim.problems if table["name"] == problem))
        for claim in ALL_CLAIMS
        if claim.id == identifier
    ]
    return [entry.verdict.verdict for entry in judge_all(chosen, [*overrides, *SHORT])]


@pytest.mark.parametrize(
    ("identifier", "problem"),
    [
        ("zhang2023.lemma-5.4.pl", "d = 3, diagonal covariance"),
    ],
)
def test_prompts_never_contradict_the_exact_loss(identifier, problem):
    exact, sampled = verdicts(identifier, problem, []), verdicts(identifier, problem, SAMPLED)
    assert len(exact) == len(sampled) > 0
    opposites = {Judgement.HOLDS: Judgement.VIOLATED, Judgement.VIOLATED: Judgement.HOLDS}
    assert all(found is not opposites.get(known) for known, found in zip(exact, sampled, strict=True))
    assert Judgement.NOT_APPLICABLE not in sampled
