"""The README's example and the tutorials on a user's own loss, model and claim, executed."""

import pathlib
import re

import pytest

import flowsim

ROOT = pathlib.Path(__file__).parents[1]


def executed(page: str, kind: str, number: int) -> dict:
    """The names after the first blocks of code of a page."""
    blocks = re.findall(rf"```{re.escape(kind)}\n(.*?)```", (ROOT / page).read_text(), re.S)
    namespace = {}
    for block in blocks[:number]:
        exec(compile(block, page, "exec"), namespace)
    return namespace


def test_a_user_s_own_claim_is_judged(capsys):
    run = executed("docs/tutorials/own-claim.md", "{code-cell}", 2)["trajectory"]
    printed = capsys.readouterr().out
    assert "mine.pl [printed]: holds" in printed
    assert "mine.pl-3 [printed]: violated" in printed
    assert run.status.finished
    # The product a b of the two layers tends to 1 while a^2 - b^2 is conserved.
    assert float(run.end.a * run.end.b) == pytest.approx(1.0, abs=1e-5)
    gap = run.models.a**2 - run.models.b**2
    assert float(abs(gap - gap[0]).max()) < 1e-7
    assert isinstance(run, flowsim.Trajectory)


@pytest.mark.slow
def test_a_user_s_conjecture_is_broken_where_it_is_false(tmp_path, capsys):
    found = executed("docs/tutorials/conjecture.md", "{code-cell}", 2)["found"]
    assert "counterexample found" in capsys.readouterr().out
    # Along the flow a b tends to 1 and a^2 - b^2 is conserved, so that a^2 + b^2 >= 2 a(0) b(0) fails only beyond it.
    assert found.counterexample.values["a"] * found.counterexample.values["b"] > 1
    found.counterexample.save(tmp_path / "new")  # no problem file was written before, which would make the folder
    assert "fails at a = " in (tmp_path / "new" / "erratum.txt").read_text()


@pytest.mark.slow
def test_the_readme_s_example_is_short_and_says_what_it_shows(capsys):
    executed("README.md", "python", 1)
    verdicts = re.findall(r"lemma-5\.4\.\w+ +printed +([\w-]+)", capsys.readouterr().out)
    assert verdicts == ["holds"] * 3
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120
