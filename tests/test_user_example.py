"""A user's own loss, on the user's own Equinox module, with the user's own claim: the README's example, executed."""

import pathlib
import re

import pytest

import flowsim

README = pathlib.Path(__file__).parents[1] / "README.md"


def example(word: str = "class") -> str:
    return next(block for block in re.findall(r"```python\n(.*?)```", README.read_text(), re.S) if word in block)


def test_the_readme_example_is_short_and_says_what_it_shows(capsys):
    code = example()
    assert len(code.splitlines()) < 30
    namespace = {}
    exec(compile(code, "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "holds" in printed
    assert "violated" in printed
    run = namespace["trajectory"]
    assert run.status.finished
    # The product a b of the two layers tends to 1 while a^2 - b^2 is conserved.
    assert float(run.end.a * run.end.b) == pytest.approx(1.0, abs=1e-5)
    gap = run.models.a**2 - run.models.b**2
    assert float(abs(gap - gap[0]).max()) < 1e-7
    assert isinstance(run, flowsim.Trajectory)


def test_the_readme_conjecture_is_broken_where_it_is_false(capsys):
    namespace = {}
    for word in ("class", "flowsim.refute"):
        exec(compile(example(word), "README.md", "exec"), namespace)
    printed = capsys.readouterr().out
    a, b = (float(re.findall(rf"{name} = ([0-9.]*[0-9])", printed)[0]) for name in "ab")
    # Along the flow a b tends to 1 and a^2 - b^2 is conserved, so that a^2 + b^2 >= 2 a(0) b(0) fails only beyond it.
    assert a * b > 1
    assert "counterexample found" in printed
