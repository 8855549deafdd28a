"""The shape of the package: what may import what, classes abstract or final, small modules, documented names."""

import ast
import graphlib
import importlib
import inspect
import pathlib
import pkgutil
import re
import subprocess
import sys

import equinox as eqx
import pytest

import flowsim

PACKAGE = pathlib.Path(flowsim.__file__).parent
# The pipeline is the import order, and the list of the rooms.
ORDER = (
    "_core",
    "tasks",
    "models",
    "moments",
    "losses",
    "initialization",
    "flow",
    "problem",
    "claims",
    "papers",
    "experiments",
    "report",
    "cli",
)
RANK = {name: rank for rank, name in enumerate(ORDER)}
PAPERS = {path.parent.name for path in PACKAGE.glob("papers/*/__init__.py")}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages([str(PACKAGE)], "flowsim.")
    if not info.name.endswith("__main__")
]


def stage(path: pathlib.Path) -> str:
    """The first part of a module's name below flowsim: its place in the pipeline."""
    place = path.relative_to(PACKAGE).with_suffix("").parts[0]
    return "cli" if place == "__main__" else place


def imported(path: pathlib.Path) -> set[str]:
    """Full names of everything a file imports, inside functions too."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the order"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_modules_before_it(path):
    if path == PACKAGE / "__init__.py":
        return
    for name in imported(path):
        parts = name.split(".")
        if parts[0] != "flowsim":
            continue
        assert len(parts) > 1 and parts[1] in RANK, f"{stage(path)} imports {name}"
        assert parts[1] == stage(path) or RANK[parts[1]] < RANK[stage(path)], f"{stage(path)} imports {name}"


def test_the_rooms_are_the_pipeline():
    found = {path.name for path in PACKAGE.iterdir()} - {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    assert found == set(ORDER)


def test_the_guide_for_contributors_maps_the_rooms():
    text = (PACKAGE.parent / "CONTRIBUTING.md").read_text().partition("## Map of the code")[2]
    assert tuple(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == ORDER


def test_a_room_has_at_most_a_dozen_things():
    crowded = {
        str(folder.relative_to(PACKAGE)): len(things)
        for folder in PACKAGE.rglob("*")
        if folder.is_dir() and folder.name not in {"__pycache__", *PAPERS}
        if len(things := [path for path in folder.iterdir() if path.name != "__pycache__"]) > 12
    }
    assert not crowded


def test_no_file_imports_itself_in_a_circle():
    """Where a package hands on the names of its files, these import one another, not the package."""
    homes = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    homes = {name.removesuffix(".__init__"): path for name, path in homes.items()}
    graph = {
        name: {full if full in homes else full.rpartition(".")[0] for full in imported(path)} & homes.keys() - {name}
        for name, path in homes.items()
        if name != "flowsim"
    }
    for name in graph:
        graph[name].discard("flowsim")
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, with the files


def test_only_the_flow_knows_the_integrator():
    knowing = {stage(path) for path in FILES if any(name.split(".")[0] == "diffrax" for name in imported(path))}
    assert knowing == {"flow"}


# The name of a paper, a numbered statement, or the number of an equation in a section or an appendix.
OF_A_PAPER = re.compile(
    rf"{'|'.join(PAPERS)}"
    r"|\b(Lemma|Theorem|Corollary|Proposition|Assumption|Definition)s? ([A-F]\.)?\d|(?<![\w.])\([A-F1-9]\.\d+\)"
)


def of_papers(text: str) -> list[str]:
    """The lines of a file, code, strings or comments, that name a paper or something of one."""
    return [line for line in text.splitlines() if OF_A_PAPER.search(line)]


def test_no_room_but_its_own_names_a_paper():
    """Names, strings, docstrings, comments and templates, in the rooms before the papers and in those after them."""
    files = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".jinja", ".toml", ".mplstyle"}]
    elsewhere = [path for path in files if stage(path) != "papers"]
    assert {stage(path) for path in elsewhere} >= {*ORDER} - {"papers"}
    assert not {path: found for path in elsewhere if (found := of_papers(path.read_text()))}


@pytest.mark.parametrize(
    "line",
    [
        "from flowsim.papers.zhang2023.conditions import scale_value",
        'help = "such as xie2025.eq-23"',
        "# as ahn2023 has it",
        '    """The balance (Lemma A.3)."""',
        "    **Source:** Theorem 4.1.",
        "    the bound of (A.14) or (5.7)",
        "gatmiry2024 = None",
    ],
)
def test_what_names_a_paper_is_found(line):
    assert of_papers(f"import jax\n{line}\n") == [line]


def test_what_names_no_paper_is_not():
    assert not of_papers("x.at[0].set(2.0) * (1.5 + a)  # Isserlis' theorem, equation (3), smith2025.lemma-3\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_small_and_annotations_real(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 400
    assert "from __future__ import annotations" not in text  # AbstractVar cannot see through strings


def own_classes() -> list[type]:
    classes = {
        member
        for module in MODULES
        for member in vars(module).values()
        if inspect.isclass(member) and member.__module__.startswith("flowsim")
    }
    return sorted(classes, key=lambda cls: cls.__qualname__)


@pytest.mark.parametrize("cls", own_classes(), ids=lambda cls: cls.__qualname__)
def test_classes_are_abstract_or_final(cls):
    for base in cls.__mro__[1:]:
        if base.__module__.startswith("flowsim"):
            assert base.__name__.startswith("Abstract"), f"{cls.__qualname__} derives from the concrete {base.__name__}"
    if issubclass(cls, eqx.Module):
        abstract = bool(cls.__abstractmethods__) or bool(getattr(cls, "__abstractvars__", ()))
        assert abstract == cls.__name__.startswith("Abstract")


def public_definitions() -> list[tuple[str, ast.Module | ast.ClassDef | ast.FunctionDef]]:
    """Public classes, functions and methods; magic methods and the insides of functions are not."""
    found = []

    def visit(node, prefix):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
                found.append((f"{prefix}.{child.name}", child))
                if isinstance(child, ast.ClassDef):
                    visit(child, f"{prefix}.{child.name}")

    for path in FILES:
        tree = ast.parse(path.read_text())
        name = str(path.relative_to(PACKAGE))
        found.append((name, tree))
        if not path.stem.startswith("_"):
            visit(tree, name)
    return found


def test_public_names_have_docstrings():
    """A method that an abstract class of this package documents needs no second text."""
    documented = {
        name.split(".")[-1] for name, node in public_definitions() if ".Abstract" in name and ast.get_docstring(node)
    }
    bare = [
        name
        for name, node in public_definitions()
        if not ast.get_docstring(node) and not (name.count(".") >= 3 and name.split(".")[-1] in documented)
    ]
    assert not bare


def run_python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_flowsim_does_not_import_jax():
    assert run_python("import flowsim, sys; print('jax' in sys.modules, 'numpy' in sys.modules)") == "False False"


def test_public_names_are_those_that_type_checkers_see_and_all_can_be_loaded():
    seen = {name.split(".")[-1] for name in imported(PACKAGE / "__init__.py") if name.startswith("flowsim.")}
    assert {*dir(flowsim)} - {"__version__"} == seen - {"VERSION"}
    for name in seen - {"VERSION"}:
        assert getattr(flowsim, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'gradient_flo'"):
        flowsim.gradient_flo  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_importing_any_module_changes_no_setting_of_jax():
    code = """
import importlib, os, pkgutil
import jax
import flowsim
before, environment = dict(jax.config.values), dict(os.environ)
for info in pkgutil.walk_packages(flowsim.__path__, "flowsim."):
    if not info.name.endswith("__main__"):
        importlib.import_module(info.name)
after = dict(jax.config.values)
print({key for key in before if before[key] != after[key]}, dict(os.environ) == environment)
"""
    assert run_python(code) == "set() True"
