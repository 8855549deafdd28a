"""``{command-line}``: what ``flowsim`` and each of its commands print with ``--help``."""

import contextlib
import io
import os
from unittest import mock

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from flowsim.cli.commands import COMMANDS
from flowsim.cli.main import main


class CommandLine(SphinxDirective):
    """A section for each command."""

    def run(self) -> list[nodes.Node]:
        text = [f"```text\n{_help()}\n```"]
        names = [command.__name__ for command in COMMANDS]
        text += [f"## flowsim {name}\n\n```text\n{_help(name)}\n```" for name in names]
        return self.parse_text_to_nodes("\n\n".join(text), allow_section_headings=True)


def _help(*command: str) -> str:
    printed = io.StringIO()
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        main([*command, "--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
