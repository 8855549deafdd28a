"""``{scenarios} PREFIX``: a card for each scenario of a paper, with its picture, what it shows and its script."""

import json
import pathlib
import re

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

_ROW = re.compile(r"^\| `(\w+)\.py` \| (.*?) \| (.*?) \| (.*?) ?\|$", re.MULTILINE)


class Scenarios(SphinxDirective):
    """The scenarios whose names begin with one of the arguments."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        docs = pathlib.Path(self.env.srcdir)
        table, pictures = docs.parent / "scenarios" / "README.md", docs / "gallery"
        self.env.note_dependency(str(table))
        seconds = json.loads((pictures / "seconds.json").read_text(encoding="utf-8"))
        lines = ["::::{grid} 1 1 2 2", ":gutter: 3", ""]
        for name, shows, source, falsified in _ROW.findall(table.read_text(encoding="utf-8")):
            if not name.startswith(tuple(self.arguments[0].split())):
                continue
            took = f", {seconds[name]} s" if name in seconds else ""
            lines += [":::{grid-item-card}"]
            if (pictures / f"{name}.png").exists():
                lines += [f"[![{_plain(shows)}](gallery/{name}.png)](gallery/{name}.png)", ""]
            lines += [shows, "", f"*{source}.* Falsified by: {falsified}.", ""]
            lines += [f"{{download}}`{name}.py <../scenarios/{name}.py>`{took}", ":::"]
        return self.parse_text_to_nodes("\n".join([*lines, "::::"]))


def _plain(text: str) -> str:
    """Without markup, for readers who do not see the picture."""
    return re.sub(r"[`*\\\[\]]", "", text)


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("scenarios", Scenarios)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
