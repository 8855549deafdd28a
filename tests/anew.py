"""A claim whose comparison is compiled anew, so that what was compiled without a planted error is not used."""

import dataclasses
import inspect

import flowsim


def anew(claim: flowsim.Claim) -> flowsim.Claim:
    """The claim with a comparison of its own, and without constants."""
    sides = inspect.unwrap(claim.compare)
    copy = lambda *arguments: sides(*arguments)
    copy.__signature__ = inspect.signature(sides)  # pyright: ignore[reportFunctionMemberAccess]
    compare = flowsim.claim(claim.id, claim.source, statement=claim.statement)(copy).compare
    return dataclasses.replace(claim, compare=compare, constants=lambda loss, flow: {})
