"""Formulas as MathML, which browsers draw by themselves: no script and no font has to be fetched."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.typing import ExtensionMetadata
from sphinx.writers.html5 import HTML5Translator

_logger = logging.getLogger(__name__)


def _formula(node: nodes.Element, display: str) -> str:
    try:
        return convert(node.astext(), display=display)
    except Exception as error:  # latex2mathml has a dozen classes of its own, without a common base
        _logger.warning("a formula is not LaTeX that can be converted: %s (%s)", node.astext(), error, location=node)
        return f"<code>{node.astext()}</code>"


def _inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(_formula(node, "inline"))
    raise nodes.SkipNode


def _block(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math"))
    self.body.append(_formula(node, "block"))
    self.body.append("</div>")
    raise nodes.SkipNode


def setup(app: Sphinx) -> ExtensionMetadata:
    """Register the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
