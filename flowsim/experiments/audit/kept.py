"""Finished verdicts of an audit, each in a file with a digest of all that the verdict depends on."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable

import jax
import msgspec

from flowsim._core.documents import versions
from flowsim._core.files import DamagedFileError, ignore_damaged, read_sealed, write_sealed
from flowsim._core.types import Document
from flowsim.claims import Claim
from flowsim.experiments.sources import claim_digest, core_digest
from flowsim.problem import AbstractSpec


class Kept:
    """A folder of finished verdicts, one file for each claim and problem.

    **Arguments:** folder: the folder, or None to keep nothing; fresh: whether to ignore existing verdicts.
    """

    def __init__(self, folder: pathlib.Path | None, *, fresh: bool = False):
        self.folder, self._fresh = folder, fresh
        self._content = functools.cache(lambda spec: spec.content)

    def key_of(self, claim: Claim, together: Iterable[Claim], spec: AbstractSpec) -> str:
        """A digest of everything that a verdict depends on; empty if nothing is kept.

        The digest covers the problem with the loss and start of a user's function, the claim with its modules, the
        claims that are compared with it, flowsim, the versions of its dependencies, and the kind of device.

        **Arguments:**

        - claim: the claim.
        - together: the claims that are compared with it.
        - spec: the problem.
        """
        if self.folder is None:
            return ""
        claims = [(one.id, one.form, claim_digest(one)) for one in (claim, *together)]
        parts = (claims, self._content(spec), core_digest(), versions(), jax.default_backend())
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def load(self, claim: Claim, spec: AbstractSpec, key: str) -> Document | None:
        """The result that was saved for a claim and problem with this key. None if no result was saved, or if its
        file is damaged.
        """
        if self.folder is None or self._fresh:
            return None
        path = self._path(self.folder, claim, spec)
        try:
            document = read_sealed(path)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            return ignore_damaged(error, "the claim is judged again")
        return document["found"] if document.get("key") == key else None

    def save(self, claim: Claim, spec: AbstractSpec, key: str, found: Document) -> None:
        """Write a result and its key to the file of a claim and problem."""
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        write_sealed(self._path(self.folder, claim, spec), {"key": key, "found": found})

    @staticmethod
    def _path(folder: pathlib.Path, claim: Claim, spec: AbstractSpec) -> pathlib.Path:
        place = hashlib.sha256(spec.to_toml().encode()).hexdigest()[:16]
        return folder / f"{claim.id}.{claim.form}.{place}.json"


def as_document(value: object) -> Document:
    """Convert a verdict, or another result, to the types of JSON. Numbers that are not finite remain floats."""
    return json.loads(json.dumps(msgspec.to_builtins(value, enc_hook=float)))
