"""The results of the finished units of work of a search, in a file from which the same search resumes."""

import pathlib
import re
from collections.abc import Sequence

from flowsim._core.checks import refuse
from flowsim._core.documents import origin, plain, require_origin
from flowsim._core.files import DamagedFileError, read_sealed, write_sealed
from flowsim._core.types import Document
from flowsim.claims import Claim
from flowsim.claims.spaces import Space
from flowsim.experiments.search.clock import Clock
from flowsim.experiments.sources import claim_digest

PROGRESS = "search.json"


class KeptUnits:
    """The results of the units of work of a search, in the file search.json.

    **Arguments:**

    - folder: the folder of the file; None writes no file.
    - what: the kind of the search.
    - claim, spaces, seed, clock: the claim, the spaces, the seed and the budget of the search.

    **Fields:** earlier: the results that an earlier run wrote to the file; done: the results of this run so far,
    which first repeats the earlier ones.

    **Raises:** `ValueError` if the file is damaged, or from another search or another version of the software.
    """

    def __init__(
        self,
        folder: pathlib.Path | None,
        what: str,
        claim: Claim,
        spaces: Sequence[Space],
        seed: int,
        clock: Clock,
    ):
        self._file, self._clock = None if folder is None else folder / PROGRESS, clock
        self._identity = plain(
            {
                "search": what,
                "claim": claim.id,
                "form": claim.form,
                "source": claim_digest(claim),
                # The addresses of functions are left out.
                "spaces": re.sub(r" at 0x[0-9a-f]+", "", repr(spaces)),
                "seed": seed,
                "longest": clock.longest,
            }
        )
        self.earlier = self._loaded()
        self.done: list[Document] = []

    def add(self, found: Document) -> None:
        """Add the result of the next unit, and write it to the file unless an earlier run wrote it.

        If the time ended during the unit, its result is neither added nor written, so that a resumed search repeats
        the unit.
        """
        repeats = len(self.done) < len(self.earlier)
        if not repeats and self._clock.is_up():
            return
        self.done.append(found)
        if self._file is not None and not repeats:
            # Without a time limit, the file is the same on every machine.
            seconds = self._clock.seconds if self._clock.problems is None else 0.0
            write_sealed(self._file, {"origin": origin(self._identity), "seconds": seconds, "units": self.done})

    def _loaded(self) -> list[Document]:
        if self._file is None or not self._file.exists():
            return []
        try:
            kept = read_sealed(self._file)
        except (OSError, DamagedFileError) as error:
            refuse("--out", "a folder with a search that can be read", f"{error}: remove it, or take another folder")
        require_origin(kept.get("origin"), self._identity, "--out", "search", self._file)
        self._clock.spent = kept["seconds"]
        return kept["units"]
