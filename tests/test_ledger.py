"""docs/claims.md is the ledger of an audit of the claims as they are."""

import pathlib
import re

import flowsim
from flowsim.ledger import escaped

PAGE = (pathlib.Path(__file__).parents[1] / "docs" / "claims.md").read_text()
SECTIONS = {title: body for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)}
REFUTED = {
    "zhang2023.sec-5.1.negative-eigenvalues",
    "zhang2023.corollary-4.3.train-length",
    "zhang2023.sec-4.2.orthogonal-query",
    "zhang2023.lemma-c.6.proof-equality",
    "zhang2023.lemma-c.8.limit",
}


def test_the_ledger_has_every_claim_as_it_is_and_no_other():
    assert list(SECTIONS) == [f"{claim.id} ({claim.form})" for claim in flowsim.ALL_CLAIMS]
    for claim in flowsim.ALL_CLAIMS:
        body = SECTIONS[f"{claim.id} ({claim.form})"]
        assert f"> {escaped(claim.statement)}\n" in body
        assert f"- Source: {claim.source}\n" in body
        assert f"`{claim.compare.__module__}.{claim.compare.__name__}`" in body
        assert not claim.note or f"- Note: {escaped(claim.note)}\n" in body
        assert re.findall(r"^\| (.*?) \| [✓✗?∅–] ", body, re.MULTILINE) == [escaped(p["name"]) for p in claim.problems]


def test_the_ledger_refutes_what_the_tests_of_the_claims_refute():
    violated = {title for title, body in SECTIONS.items() if "✗ violated" in body}
    assert violated == {f"{name} (printed)" for name in REFUTED}
    assert {f"{name} (corrected)" for name in REFUTED} <= SECTIONS.keys()
    assert "? unresolved" not in PAGE and "– not-applicable" not in PAGE
