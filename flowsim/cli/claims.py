"""`flowsim claims`: every claim."""

import json

from flowsim import papers
from flowsim.cli.common import FINISHED


def claims(*, as_json: bool) -> int:
    """List every claim."""
    names = ("id", "source", "form", "statement")
    if as_json:
        print(json.dumps([{name: getattr(claim, name) for name in names} for claim in papers.ALL_CLAIMS], indent=1))
        return FINISHED
    for claim in papers.ALL_CLAIMS:
        print(f"{claim.id} [{claim.form}], {claim.source}\n    {claim.statement}")
    return FINISHED
