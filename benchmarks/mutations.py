"""Which errors of one percent each row of the ledger notices: a row that no error breaks could not fail.

    python benchmarks/mutations.py [gatmiry2024] [--seconds 60] [--flows] [--keep]

Every term of a sum, and every value returned, in the modules of tasks, models, moments and losses, and in the formulas
of the papers, can be made wrong by one percent, some larger and some smaller. For each claim, on the first of its
problems where it says something, all terms of the losses and of what they are made of that its verdict rests on are
changed at once; where the verdict changes, halves of them, down to one term or until the time is over. Where it does
not, the terms of the paper's formulas are; then larger errors, as a statement with room to spare has to be. The table
tells the term, or the last of how many terms that were changed together, the factor and the verdict that follows.

Claims along a flow cost a minute each and are left out without --flows: the tests plant an error for every claim
(`python -m pytest -m audit`).
"""

import argparse
import ast
import contextlib
import dataclasses
import importlib.abc
import importlib.machinery
import json
import pathlib
import signal
import sys
import time
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_MUTATED = ("flowsim.losses.", "flowsim.moments.", "flowsim.models.", "flowsim.tasks.", "flowsim.papers.")
_FACTORS = (1.01, 2.0, -1.0, 1e3)
_MARK = "__term__"


@dataclasses.dataclass
class Terms:
    """The terms of the program: where each stands, which were used, and which are wrong by what factor."""

    places: list[str] = dataclasses.field(default_factory=list)
    used: set[int] = dataclasses.field(default_factory=set)
    wrong: frozenset[int] = frozenset()
    factor: float = 1.0

    def __call__(self, number: int, value):
        """A term as it is, unless it is one that is wrong."""
        self.used.add(number)
        return self._scaled(number, value) if number in self.wrong else value

    def _scaled(self, number: int, value):
        import equinox as eqx
        import jax

        # Of several terms half are larger and half smaller, as a common factor may cancel.
        larger = len(self.wrong) == 1 or (number * 2654435761 >> 16) % 2
        factor = self.factor if larger else 1 / self.factor
        scale = lambda leaf: leaf * factor if isinstance(leaf, float) or eqx.is_inexact_array(leaf) else leaf
        return jax.tree.map(scale, value)


TERMS = Terms()


class _Marking(ast.NodeTransformer):
    """Marks every term of a sum and every value returned in the functions of a module."""

    def __init__(self, module: str):
        self._module, self._inside = module, []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self._inside.append(node.name)
        node.body = [self.visit(statement) for statement in node.body]
        self._inside.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._inside.append(node.name)
        node.body = [
            self.visit(statement) if isinstance(statement, ast.FunctionDef) else statement for statement in node.body
        ]
        self._inside.pop()
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        if node.value is not None:
            whole = node.value
            node.value = value = self.visit(whole)
            if not _is_sum(whole):
                node.value = self._marked(whole, value)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        left, right = node.left, node.right
        node.left, node.right = self.visit(left), self.visit(right)
        if _is_sum(node):
            if not _is_sum(left):
                node.left = self._marked(left, node.left)
            if not _is_sum(right):
                node.right = self._marked(right, node.right)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        # An index or a shape that is stored into is no term.
        node.value = self.visit(node.value)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        node.value = self.visit(node.value)
        return node

    def _marked(self, source: ast.expr, value: ast.expr) -> ast.expr:
        if not self._inside or isinstance(source, ast.Constant) or ast.unparse(source) == "self":
            return value
        number = len(TERMS.places)
        where = f"{self._module}:{source.lineno} {'.'.join(self._inside)}: {ast.unparse(source)[:90]}"
        TERMS.places.append(where)
        call = ast.Call(ast.Name(_MARK, ast.Load()), [ast.Constant(number), value], [])
        return ast.fix_missing_locations(ast.copy_location(call, source))


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its terms marked."""

    def source_to_code(self, data, path, *, _optimize=-1):
        tree = ast.parse(data)
        # Before it is marked, so that the terms are numbered as they are read.
        return compile(ast.fix_missing_locations(_Marking(self.name).visit(tree)), path, "exec", dont_inherit=True)

    def get_code(self, fullname):
        return self.source_to_code(self.get_data(self.path), self.path)

    def exec_module(self, module):
        vars(module)[_MARK] = TERMS
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules whose terms are marked."""

    def find_spec(self, fullname, path, target=None):
        if not fullname.startswith(_MUTATED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin)
        return spec


@dataclasses.dataclass(frozen=True)
class Row:
    """A claim with the error that breaks it, the last of ``together`` terms that were changed at once; none where
    ``term`` is None.
    """

    id: str
    form: str
    problem: str
    verdict: str
    margin: float | None
    terms: int
    tried: int
    together: int
    term: str | None
    factor: float | None
    then: str | None
    note: str


def examined(claim, seconds: float) -> Row | None:
    """The first error that changes the verdict of a claim; None where the claim says nothing on any of its problems."""
    for named in claim.problems:
        begun = time.monotonic()
        before = _judged(claim, named, frozenset(), 1.0)
        if str(before.verdict) in ("holds", "violated"):
            break
    else:
        return None
    once = time.monotonic() - begun
    last, limit = begun + max(seconds, 3 * once), max(seconds, 4 * once)
    used = sorted(TERMS.used)
    row = Row(
        claim.id,
        claim.form,
        str(named.get("name", "")),
        str(before.verdict),
        before.margin,
        len(used),
        0,
        0,
        None,
        None,
        None,
        "",
    )
    of_papers = [number for number in used if TERMS.places[number].startswith("flowsim.papers.")]
    others = [number for number in used if number not in of_papers]
    others.sort(key=lambda number: (TERMS.places[number].startswith("flowsim.losses"), number))
    tried = 0

    def after(numbers: list[int], factor: float) -> str | None:
        """The verdict that follows, None where it is the same."""
        nonlocal tried
        tried += 1
        try:
            with _at_most(limit):
                verdict = str(_judged(claim, named, frozenset(numbers), factor).verdict)
        except _OutOfTimeError:
            return None
        except Exception as error:  # an error may make the problem one that is refused
            return type(error).__name__
        return None if verdict == str(before.verdict) else verdict

    def least(numbers: list[int], factor: float, then: str) -> tuple[list[int], str]:
        """As few of the terms as time allows that change the verdict too, and what it then is."""
        while len(numbers) > 1 and time.monotonic() < last:
            middle = len(numbers) // 2
            for half in (numbers[middle:], numbers[:middle]):
                if (found := after(half, factor)) is not None:
                    numbers, then = half, found
                    break
            else:
                break
        return numbers, then

    for factor in _FACTORS:
        for numbers in (others, of_papers):
            if not numbers or (tried > 1 and time.monotonic() > last):
                continue
            then = after(numbers, factor)
            if then is not None:
                numbers, then = least(numbers, factor, then)
                place = TERMS.places[numbers[-1]]
                return dataclasses.replace(
                    row, tried=tried, together=len(numbers), term=place, factor=factor, then=then
                )
    return dataclasses.replace(row, tried=tried, note="out of time" if time.monotonic() > last else "")


class _OutOfTimeError(BaseException):
    """A verdict took too long: no `Exception`, as judging turns those into verdicts."""


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raises `_OutOfTimeError` inside after some seconds: a wrong term may make a search that never ends."""

    def interrupt(number, frame):
        raise _OutOfTimeError

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _judged(claim, named, wrong: frozenset[int], factor: float):
    import jax

    from flowsim.experiments.audit import judge_all

    _forget()
    TERMS.used.clear()
    TERMS.wrong, TERMS.factor = wrong, factor
    # A compiled program keeps the terms that it was traced with.
    jax.clear_caches()
    try:
        (entry,) = judge_all([dataclasses.replace(claim, problems=(named,))])
    finally:
        TERMS.wrong = frozenset()
    return entry.verdict


def _forget() -> None:
    """Forget what flowsim's functions remember."""
    for name, module in list(sys.modules.items()):
        if name.startswith("flowsim"):
            for value in vars(module).values():
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def table(rows: list[Row]) -> str:
    """The rows in Markdown, those that nothing broke first."""
    lines = ["| claim | form | verdict | terms | broken by | factor | then |", "|---|---|---|---|---|---|---|"]
    for row in sorted(rows, key=lambda row: (row.term is not None, row.id, row.form)):
        by = (
            f"nothing of {row.tried} tries {row.note}".strip()
            if row.term is None
            else f"`{row.term}`".replace("|", "\\|") + (f" and {row.together - 1} more" if row.together > 1 else "")
        )
        lines.append(
            f"| {row.id} | {row.form} | {row.verdict} | {row.terms} | {by} | {row.factor or ''} | {row.then or ''} |"
        )
    return "\n".join(lines)


def _keep(rows: list[Row]) -> None:
    """Replace what the results have of these claims, so that each paper can be run by a process of its own."""
    file = RESULTS / "mutations.json"
    known = [Row(**row) for row in json.loads(file.read_text())] if file.exists() else []
    fresh = {(row.id, row.form) for row in rows}
    everything = sorted([*rows, *(row for row in known if (row.id, row.form) not in fresh)], key=lambda row: row.id)
    broken = sum(row.term is not None for row in everything)
    about = str(__doc__).replace("    python benchmarks/mutations.py", "Written by `python benchmarks/mutations.py", 1)
    about = about.replace("[--keep]", "--keep`.", 1).partition("\n")
    head = f"# {about[0]}\n{about[2]}\n{broken} of {len(everything)} rows are broken by one of the errors tried."
    (RESULTS / "mutations.md").write_text(f"{head}\n\n{table(everything)}\n")
    file.write_text(json.dumps([dataclasses.asdict(row) for row in everything], indent=0) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Print each row as it is found; keep the table of a whole run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("claims", nargs="?", default="", help="the beginning of the ids of the claims, default all")
    parser.add_argument("--seconds", type=float, default=60.0, help="for a claim")
    parser.add_argument("--flows", action="store_true", help="claims along a flow too")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/mutations.md and .json")
    asked = parser.parse_args(arguments)
    sys.meta_path.insert(0, _Finder())
    from flowsim.cli.prepare import prepare_jax
    from flowsim.papers import ALL_CLAIMS

    prepare_jax()
    rows = []
    for row in _examined_all(
        [claim for claim in ALL_CLAIMS if claim.id.startswith(asked.claims) and (asked.flows or not claim.along_flow)],
        asked,
    ):
        rows.append(row)
        print(
            f"{row.id} ({row.form}): {row.verdict} -> {row.then} by {row.factor} in {row.together} {row.term}",
            flush=True,
        )
        if asked.keep:
            _keep(rows)
    print(table(rows))
    unbroken = [row for row in rows if row.term is None]
    print(f"{len(rows)} rows, {len(unbroken)} that nothing broke")
    return 0


def _examined_all(claims, asked) -> Iterator[Row]:
    for claim in claims:
        row = examined(claim, asked.seconds)
        if row is not None:
            yield row


if __name__ == "__main__":
    sys.exit(main())
