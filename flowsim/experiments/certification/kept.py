"""A folder of certificates, one file each, and a record of the attempts that found no certificate."""

import dataclasses
import functools
import json
import math
import os
import pathlib
from fractions import Fraction

from flowsim._core.files import DamagedFileError, ignore_damaged, read_document, remove_parts_of_the_dead, write_whole
from flowsim._core.types import Document
from flowsim.claims import Claim, Evidence, Verdict
from flowsim.claims.deciding.iterates import DescentEvidence
from flowsim.claims.proofs import FollowedFlow, checker
from flowsim.experiments.audit.kept import Kept
from flowsim.experiments.certification.attempts import certified
from flowsim.problem import AbstractSpec

SECONDS = 60.0  # for each claim
FLOWS = 4  # flows that are kept in memory at a time
FIELDS = ("certified", "proved_until", "uncertified")


def certificate_name(claim: Claim | Verdict) -> str:
    """The name of the file with a claim's certificate."""
    return f"{claim.id}{'' if claim.form == 'printed' else f'-{claim.form}'}.json"


class ContradictionError(ArithmeticError):
    """Raised if a certificate shows the opposite of the measured verdict. The message names the claim, the verdict,
    what the certificate shows, and its file.
    """


def refuse_contradicted(verdict: Verdict, path: pathlib.Path) -> None:
    """Raise `ContradictionError` if a certificate, in the file ``path``, shows the opposite of a verdict."""
    if verdict.contradicted:
        raise ContradictionError(
            f"{verdict.id} [{verdict.form}]: the measured verdict is {verdict.verdict}, and {path} shows that it is "
            f"{verdict.certified}, so that one of the two is wrong"
        )


class Certificates:
    """A folder of certificates, ID.json for a printed claim and ID-corrected.json for a corrected one.

    The result of each attempt is saved. An attempt on the same problem is repeated only if it found no certificate
    within a shorter time limit, or if its certificate is missing or damaged.

    **Arguments:**

    - folder: the folder, created with the first certificate.
    - seconds: the time limit for each claim.
    - fresh: whether to repeat all earlier attempts.
    """

    def __init__(self, folder: str | os.PathLike, seconds: float = SECONDS, *, fresh: bool = False):
        self.folder, self.seconds = pathlib.Path(folder), seconds
        self._kept = Kept(self.folder / "units", fresh=fresh)
        self._followed = functools.lru_cache(FLOWS)(_followed)
        for place in (self.folder, self.folder / "units"):
            remove_parts_of_the_dead(place)

    def certified(
        self, claim: Claim, verdict: Verdict, evidence: Evidence | DescentEvidence, spec: AbstractSpec
    ) -> Verdict:
        """Add the result of a certificate to a verdict. If the folder has no valid result, `tried` looks for a
        certificate.

        **Raises:** `ContradictionError` if the certificate shows the opposite of the verdict.
        """
        key = f"{self._kept.key_of(claim, (), spec)} {verdict.verdict} {verdict.where}"
        path = self.folder / certificate_name(claim)
        found = self._load(claim, spec, key, path)
        if found is None:
            found = self.tried(claim, verdict, evidence, spec)
            self._kept.save(claim, spec, key, found)
        verdict = dataclasses.replace(verdict, **{name: found[name] for name in FIELDS})
        refuse_contradicted(verdict, path)
        return verdict

    def tried(
        self, claim: Claim, verdict: Verdict, evidence: Evidence | DescentEvidence, spec: AbstractSpec
    ) -> Document:
        """Try to certify a verdict. A certificate that is found is written to its file; otherwise an older file is
        removed.

        **Returns:** the values of `FIELDS`, the time limit "seconds", and the "digest" of the certificate or None.
        """
        path = self.folder / certificate_name(claim)
        how = {"seconds": self.seconds, "problem": spec.to_toml()}
        shown, certificate = certified(claim, verdict, evidence, lambda: self._followed(evidence, spec), **how)
        found = {name: getattr(shown, name) for name in FIELDS} | {"seconds": self.seconds, "digest": None}
        self.folder.mkdir(parents=True, exist_ok=True)
        if certificate is None:
            path.unlink(missing_ok=True)
        else:
            found["digest"] = certificate["digest"]
            text = json.dumps(certificate, indent=1).encode()
            write_whole(path, lambda file: file.write(text))
        return found

    def has(self, claim: Claim, found: Document) -> bool:
        """Whether the folder agrees with the result of an earlier attempt. It does if the attempt found no
        certificate, or if the file of the certificate is undamaged and shows the same result.
        """
        return found["certified"] is None or _shows(self.folder / certificate_name(claim), found)

    def _load(self, claim: Claim, spec: AbstractSpec, key: str, path: pathlib.Path) -> Document | None:
        """The saved result of an attempt, or None if it must be repeated: the certificate is missing or damaged, or
        the attempt found none within a shorter time limit.
        """
        found = self._kept.load(claim, spec, key)
        if found is None or (found["certified"] is None and found["seconds"] < self.seconds):
            return None
        if found["certified"] is None:
            return found
        return found if _shows(path, found) else None


def _followed(evidence: Evidence, spec: AbstractSpec) -> FollowedFlow:
    return FollowedFlow(evidence.loss, evidence.trajectory.start, spec.start_from_tables)


def _shows(path: pathlib.Path, found: Document) -> bool:
    """Whether a file is the undamaged certificate that belongs to the result ``found``. Warns if the file is
    damaged.
    """
    try:
        certificate = read_document(path)
        if certificate.get("digest") != checker.digest(certificate):
            raise DamagedFileError(f"{path} is damaged (its digest is not that of its contents)")
    except FileNotFoundError:
        return False
    except DamagedFileError as error:
        ignore_damaged(error, "a certificate is tried again")
        return False
    # A certificate without a time is about the start alone, a refutation, or a proof for all t.
    until = certificate.get("until")
    known = until is None or found["certified"] == "refuted" or found["proved_until"] == float(Fraction(until))
    same = certificate["digest"] == found["digest"] and certificate["verdict"] == found["certified"]
    return same and known and (until is not None or found["proved_until"] in (None, math.inf))
