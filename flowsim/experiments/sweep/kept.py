"""Finished batches of a sweep, each in a file with the digest of the sweep."""

import contextlib
import pathlib
from collections.abc import Mapping

import numpy as np

from flowsim._core.checks import refuse
from flowsim._core.documents import origin, require_origin
from flowsim._core.files import DamagedFileError, ignore_damaged, read_arrays, read_document, write_arrays
from flowsim._core.types import Document, Tables
from flowsim.experiments.sweep.integration import CellBatch
from flowsim.experiments.sweep.records import MapRecord
from flowsim.problem import toml

OF_BATCHES = ("origin", "cells")  # arrays in addition to the quantities


class KeptBatches:
    """A folder of finished batches of a sweep.

    **Arguments:**

    - folder: the folder.
    - identity: the digest of the sweep.
    - batches: all batches of the sweep.
    """

    def __init__(self, folder: pathlib.Path, identity: str, batches: list[CellBatch]):
        self.folder, self._identity, self._batches = folder, identity, batches

    def check(self) -> None:
        """Raise `ForeignFileError` if a batch belongs to another sweep, or was computed by another version of the
        software.
        """
        for path in sorted(self.folder.glob("batch-*.npz")):
            with contextlib.suppress(DamagedFileError):
                self._check(read_arrays(path), path)

    def missing(self) -> list[int]:
        """The indices of the batches that have no file yet."""
        return [place for place in range(len(self._batches)) if not self._path(place).exists()]

    def load(self, place: int) -> MapRecord | None:
        """The record of a finished batch. None if its file is missing or damaged, or holds other cells.

        **Raises:** `ForeignFileError` if it belongs to another sweep or to another version of the software.
        """
        path = self._path(place)
        try:
            arrays = read_arrays(path)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            return ignore_damaged(error, "its cells are integrated again")
        self._check(arrays, path)
        if not np.array_equal(arrays["cells"], np.asarray(self._batches[place].cells)):
            return None
        return {name: array for name, array in arrays.items() if name not in OF_BATCHES}

    def save(self, place: int, record: MapRecord) -> None:
        """Write the record of a batch to its file."""
        arrays = {
            "origin": np.asarray(origin(self._identity)),
            "cells": np.asarray(self._batches[place].cells),
        } | record
        write_arrays(self._path(place), arrays)

    def _check(self, arrays: Mapping[str, np.ndarray], path: pathlib.Path) -> None:
        require_origin(arrays.get("origin"), self._identity, "--out", "sweep", path)

    def _path(self, place: int) -> pathlib.Path:
        return self.folder / f"batch-{place:05d}.npz"


def check_marker(marker: pathlib.Path, document: Document, kept: KeptBatches) -> None:
    """Raise `ProblemError` if the marker of a folder, sweep.json, is that of another sweep. If the marker is
    damaged, the finished batches are checked instead, since each identifies its sweep.

    **Arguments:** marker: the file; document: what it must hold; kept: the finished batches.
    """
    try:
        found = read_document(marker)
        difference = None if found == document else _difference(found, document)
    except DamagedFileError as error:
        kept.check()
        return ignore_damaged(error, "it is written again")
    except (KeyError, TypeError, AttributeError):
        refuse("--out", "the folder of this same sweep", f"{marker} holds something else: take another folder")
    if difference is not None:
        refuse("--out", "the folder of this same sweep", f"{difference} differs from {marker}: take another folder")


def _difference(one: Tables, other: Tables) -> str | None:
    """The name of the first axis or field in which two sweeps differ, or None."""
    left, right = (
        {f"the axis {axis['field']}": (place, axis["values"]) for place, axis in enumerate(document["axes"])}
        | {"--claims": document["claims"], "curves": document.get("curves")}
        | {"what the function makes": document.get("made")}
        | dict(toml.flat(document["problem"]))
        for document in (one, other)
    )
    return next((name for name in left | right if left.get(name) != right.get(name)), None)
