"""``{problem-fields} TABLE`` and ``{architectures}``: what a problem file may hold, as flowsim itself reads it."""

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata

from flowsim.problem import ProblemSpec
from flowsim.problem.architectures import _ARCHITECTURES, architecture_of
from flowsim.problem.model_table import ModelTable
from flowsim.problem.toml import fields


class ProblemFields(SphinxDirective):
    """The fields of a table, and what each may hold."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        prefix = f"{self.arguments[0]}."
        rows = ["| field | holds |", "|---|---|"]
        for name, field in fields(ProblemSpec).items():
            if name.startswith(prefix):
                rows.append(f"| `{name}` | {_shortened(field.expected)} |")
        return self.parse_text_to_nodes("\n".join(rows))


def _shortened(expected: str) -> str:
    """Tables by a word: their fields have rows of their own."""
    before, table, after = expected.partition("a table {")
    return f"{before}a table{after.partition('}')[2]}" if table else expected


class Architectures(SphinxDirective):
    """The architectures with their fields, starts and losses."""

    def run(self) -> list[nodes.Node]:
        rows = ["| `architecture` | fields of `[model]` | kinds of start | losses |", "|---|---|---|---|"]
        for name in _ARCHITECTURES:
            known = architecture_of(name)
            cells = (known.fields, known.starts(ModelTable(architecture=name)), known.losses)
            rows.append(f"| `{name}` | " + " | ".join(", ".join(f"`{word}`" for word in cell) for cell in cells) + " |")
        return self.parse_text_to_nodes("\n".join(rows))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directives."""
    app.add_directive("problem-fields", ProblemFields)
    app.add_directive("architectures", Architectures)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
