"""``{public-names}``: the public names that rooms of the package hold, as autodoc describes them.

A public name of ``flowsim`` that no page of the reference has is an error of the build.
"""

import importlib
import inspect
from typing import Any, ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import ExtensionMetadata, OptionSpec

import flowsim

_logger = logging.getLogger(__name__)


class PublicNames(SphinxDirective):
    """The argument is a module. Of ``flowsim`` the names are those that live in the option's rooms; of another module,
    those that it exports and ``flowsim`` does not.
    """

    required_arguments = 1
    option_spec: ClassVar[OptionSpec] = {"rooms": str.split}

    def run(self) -> list[nodes.Node]:
        module = importlib.import_module(self.arguments[0])
        names = _of_rooms(self.options["rooms"]) if module is flowsim else _beside(module)
        if module is flowsim:
            _described(self.env).setdefault(self.env.docname, []).extend(names)
        lines = [f".. currentmodule:: {module.__name__}", "", ".. autosummary::", ""]
        lines += [f"   {name}" for name in names]
        lines += [line for name in names for line in _entry(module, name)]
        return self.parse_text_to_nodes("\n".join(["```{eval-rst}", *lines, "```"]))


def _of_rooms(rooms: list[str]) -> list[str]:
    within = tuple(f"flowsim.{room}." for room in rooms)
    return sorted((name for name, home in flowsim._HOME.items() if f"{home}.".startswith(within)), key=str.lower)


def _beside(module: Any) -> list[str]:
    names = (name for name, value in vars(module).items() if not (name.startswith("_") or inspect.ismodule(value)))
    own = (name for name in names if str(getattr(vars(module)[name], "__module__", "")).startswith("flowsim"))
    return sorted((name for name in own if name not in flowsim._HOME), key=str.lower)


def _entry(module: Any, name: str) -> list[str]:
    value = getattr(module, name)
    if inspect.isclass(value):
        return ["", f".. autoclass:: {name}", "   :members:"]
    if callable(value):
        return ["", f".. autofunction:: {name}"]
    return ["", f".. autodata:: {name}", "   :no-value:"]


def _described(env: BuildEnvironment) -> dict[str, list[str]]:
    """The public names of flowsim by the page that describes them."""
    return vars(env).setdefault("flowsim_names", {})


def _purge(app: Sphinx, env: BuildEnvironment, docname: str) -> None:
    _described(env).pop(docname, None)


def _merge(app: Sphinx, env: BuildEnvironment, docnames: set[str], other: BuildEnvironment) -> None:
    _described(env).update(_described(other))


def _check(app: Sphinx, env: BuildEnvironment) -> None:
    if missing := set(flowsim._HOME).difference(*_described(env).values()):
        _logger.warning("the reference lacks public names of flowsim: %s", ", ".join(sorted(missing)))


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the directive, and the check that no name is left out."""
    app.add_directive("public-names", PublicNames)
    app.connect("env-purge-doc", _purge)
    app.connect("env-merge-info", _merge)
    app.connect("env-check-consistency", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
