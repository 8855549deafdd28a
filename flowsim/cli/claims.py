"""`flowsim claims`: list every claim. `flowsim cite`: BibTeX entries of papers and of flowsim."""

import fnmatch
from collections.abc import Sequence

from flowsim import papers
from flowsim._core import VERSION
from flowsim._core.checks import refuse
from flowsim.cli.common import FINISHED, claims_of, print_json
from flowsim.papers.data import bibtex_of

_FLOWSIM = f"""@misc{{flowsim,
  author = {{{{The flowsim developers}}}},
  title  = {{flowsim: gradient flow on the population losses of linear transformers}},
  note   = {{Version {VERSION}}},
}}
"""


def claims(pattern: str, *, as_json: bool) -> int:
    """List the claims whose ids match a pattern, or begin with it."""
    chosen = [claim for claim in papers.ALL_CLAIMS if fnmatch.fnmatchcase(claim.id, pattern)] or claims_of(pattern)
    if as_json:
        names = {"id": "id", "source": "source", "form": "form", "statement": "text", "latex": "statement"}
        print_json([{key: getattr(claim, name) for key, name in names.items()} for claim in chosen])
        return FINISHED
    for claim in chosen:
        print(f"{claim.id} [{claim.form}], {claim.source}\n    {claim.text}")
    return FINISHED


def cite(identifiers: Sequence[str]) -> int:
    """Print the BibTeX entries of the papers of some claims and of flowsim."""
    places: dict[str, dict[str, None]] = {}
    for identifier in identifiers:
        for claim in claims_of(identifier):
            paper, _, place = claim.source.partition(", ")
            if paper not in (known.id for known in papers.PAPERS):
                refuse("claim id", "that of a statement of a paper", f"{identifier} is of no paper")
            places.setdefault(paper, {})[place] = None
    for paper, cited in places.items():
        print(*(rf"% \cite[{{{place}}}]{{{paper}}}" for place in cited), bibtex_of(paper), sep="\n")
    print(_FLOWSIM, end="")
    return FINISHED
