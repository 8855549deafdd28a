"""How Sphinx builds the site: ``python -m sphinx -W --keep-going docs docs/_build``. Nothing is fetched."""

import pathlib
import sys

import flowsim

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

project = "flowsim"
author = "The flowsim developers"
copyright = author
release = flowsim.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_copybutton",
    "sphinx_design",
    "extensions.mathml",
    "extensions.docstrings",
    "extensions.public_names",
    "extensions.command_line",
    "extensions.problem_files",
    "extensions.ledger",
    "extensions.every_claim",
    "extensions.scenarios",
    "extensions.repository_links",
]
exclude_patterns = ["_build", "jupyter_execute", "extensions"]  # the notebooks that a build before this one ran
nitpicky = False  # types of other libraries are named, and their inventories would have to be fetched

# Notebooks run anew in every build; what they print on stderr is a warning, and so an error.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 900  # seconds for a cell, which takes less than 20 on an idle machine
nb_output_stderr = "remove"
nb_merge_streams = True

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4  # as GitHub names them, so that links work there and here

autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"

html_theme = "sphinx_book_theme"
html_title = "flowsim"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_toc_level": 2,
    "show_navbar_depth": 1,
}
# Addresses for `-b linkcheck`, which is run by hand.
linkcheck_timeout = 20
