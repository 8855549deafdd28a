"""Links that are right in the repository, made right on the site.

The tables of benchmarks/results are copied to docs/measurements, as Sphinx reads no page from outside of its folder.
"""

import filecmp
import pathlib
import re
import shutil

from sphinx.application import Sphinx
from sphinx.util.typing import ExtensionMetadata

_RESULTS = re.compile(r"\]\((?:\.\./)+benchmarks/results/")


def _copied(app: Sphinx) -> None:
    """Copy the tables that are new or changed."""
    folder = pathlib.Path(app.srcdir, "measurements")
    folder.mkdir(exist_ok=True)
    for page in pathlib.Path(app.srcdir).parent.glob("benchmarks/results/*.md"):
        if not ((copy := folder / page.name).exists() and filecmp.cmp(page, copy, shallow=False)):
            shutil.copyfile(page, copy)


def _moved(app: Sphinx, page: str, source: list[str]) -> None:
    """Point to the copies."""
    source[0] = _RESULTS.sub("](/measurements/", source[0])


def setup(app: Sphinx) -> ExtensionMetadata:
    """Copy before pages are looked for, and look at each as it is read."""
    app.connect("builder-inited", _copied)
    app.connect("source-read", _moved)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
