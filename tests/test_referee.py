"""The page for a referee: it says what verdicts, certificates and searches found, in three formats, and no more."""

import html.parser
import re

import pytest

import flowsim
from flowsim.claims.deciding.verdict import Judgement, Verdict
from flowsim.cli.main import main
from flowsim.experiments.audit import Entry
from flowsim.report.referee import Review

OWN = '''
import equinox as eqx
import jax
import jax.numpy as jnp

import flowsim
from flowsim.claims.hypotheses import hypothesis


class Net(eqx.Module):
    a: jax.Array
    b: jax.Array


def make(a: float = 0.5, b: float = 1.0):
    loss = flowsim.FunctionLoss(lambda net: 0.5 * (net.a * net.b - 1.0) ** 2, minimum=0.0)
    return loss, Net(jnp.asarray(a), jnp.asarray(b))


def conditions(loss, start):
    return [hypothesis("a(0) > 0", start.a, ">", 0.0), hypothesis("b(0) < 3", start.b, "<", 3.0)]


SPACE = flowsim.Space({"a": flowsim.Real(0.1, 2.0), "b": flowsim.Real(0.1, 2.0)}, make=make)


@flowsim.claim("mine.sign", "notes", hypotheses=conditions, spaces=(SPACE,))
def positive(start):
    """$a(0) \\\\ge 0.05$ for 5\\\\% of b"""
    return flowsim.at_least(start.a, 0.05)


@flowsim.claim("mine.large", "notes", hypotheses=conditions, spaces=(SPACE,))
def large(start):
    """$a(0) \\\\ge 1.5$"""
    return flowsim.at_least(start.a, 1.5)
'''


class Balanced(html.parser.HTMLParser):
    """The elements that are open."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "br", "link", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def pages(folder):
    texts = {suffix: (folder / f"referee.{suffix}").read_text() for suffix in ("html", "md", "tex")}
    parser = Balanced()
    parser.feed(texts["html"])
    assert not parser.open
    assert "http" not in texts["html"].replace("http://www.w3.org", "")
    tex = re.sub(r"\\[\\{}%&#_$]", "", texts["tex"])
    assert tex.count("{") == tex.count("}")
    assert tex.count("$") % 2 == 0
    for table in re.findall(r"(?:^\|.*\|\n)+", texts["md"], re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1
    return texts


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_true_claim_of_ones_own_names_the_hypothesis_that_it_needs(own, tmp_path, capfd):
    out = tmp_path / "review"
    asked = [f"{own}:positive", f"{own}:make", "--out", str(out), "--problems", "128", "--budget", "30s"]
    assert main(["referee", *asked]) == 0
    told = capfd.readouterr().out.splitlines()
    assert told[0].startswith("notes as printed (mine.sign): 1 holds, of 1 problem; proved by a certificate on one")
    assert re.match(
        r"Hypotheses, searched on \d+ problems: needed: a\(0\) > 0; not found needed: b\(0\) < 3\.", told[1]
    )
    assert told[2].startswith("Not checked: the argument of the proof")
    assert "fails" not in told[2]
    found = pages(out)
    assert "no counterexample among" in found["md"]
    assert r"for 5\% of b" in found["tex"]
    assert all("for 5% of b" in found[suffix] for suffix in ("md", "html"))
    assert "a(0) &gt; 0" in found["html"]
    assert (out / "certificates" / "mine.sign.json").is_file()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("certificates/mine.sign.json", '"precision": 1', '"precision": 2'),
        ("certified/mine.json", '"proved_until": null', '"proved_until": 7.0'),
        ("certified/mine.json", '"certified": "proved"', '"certified": "refuted"'),
    ],
    ids=["certificate", "time", "verdict"],
)
def test_what_is_changed_in_the_folder_is_not_believed(file, old, new, own, tmp_path, capfd):
    out = tmp_path / "review"
    asked = [f"{own}:positive", f"{own}:make", "--out", str(out), "--problems", "16", "--budget", "30s"]
    assert main(["referee", *asked]) == 0
    told = capfd.readouterr().out.splitlines()[0]
    text = (out / file).read_text()
    assert old in text
    (out / file).write_text(text.replace(old, new, 1))
    assert main(["referee", *asked]) == 0
    out_again, err = capfd.readouterr()
    assert out_again.splitlines()[0] == told
    assert ("mine.sign.json is damaged" in err) is file.startswith("certificates")
    assert main(["verify", str(out / "certificates" / "mine.sign.json")]) == 0


def test_a_false_claim_comes_with_the_problem_at_which_it_fails(own, tmp_path, capfd):
    out = tmp_path / "review"
    asked = [f"{own}:large", f"{own}:make", "--out", str(out), "--problems", "32", "--budget", "30s"]
    assert main(["referee", *asked]) == 0
    told = capfd.readouterr().out.splitlines()
    assert "1 violated, of 1 problem; refuted by a certificate" in told[0]
    assert told[1] == "Hypotheses: a(0) > 0, b(0) < 3."
    assert "which hypotheses are needed, as the statement fails with all of them met" in told[2]
    assert "fails at" in pages(out)["md"]


@pytest.mark.slow
def test_a_printed_statement_has_its_weight_its_correction_and_its_known_counterexample(tmp_path, capfd):
    name = "gatmiry2024.lemma-a.2.pairings"
    assert main(["referee", name, "--out", str(tmp_path), "--budget", "60s"]) == 0
    told = capfd.readouterr().out
    assert "refuted by a certificate" in told
    assert "a wrong constant" in told or "a slip" in told
    found = pages(tmp_path)
    assert f"flowsim run docs/counterexamples/{name}.toml" in found["md"]
    assert "corrected" in found["md"]
    assert not (tmp_path / "search").exists()


def test_how_far_a_constant_is_from_the_sharp_one_leaves_out_those_that_say_nothing():
    claim = next(one for one in flowsim.ALL_CLAIMS if one.id == "zhang2023.lemma-5.4.pl")
    spec = flowsim.ProblemSpec.from_toml("[task]\ncontext_length = 2\ncovariance = [[1.0]]\n[init]\nscale = 0.3")

    def line(*constants):
        one = lambda known: Verdict(
            claim.id, claim.source, "printed", claim.statement, Judgement.HOLDS, 1.0, 0.0, 1e-9, 0.5, (), known, ""
        )
        entries = [Entry(claim, "", spec, None, None, one(known)) for known in constants]
        return Review((claim,), tuple(entries), None, None, None).lines[0]

    silent = [{"mu": 0.0, "sharp_mu": 1.0}, {"mu": 1.0, "sharp_mu": float("inf")}, {"mu": 1.0}, {}]
    known = [{"mu": 1.0, "sharp_mu": 2.0}, {"mu": 0.5, "sharp_mu": 20.0}]
    assert "sharp" not in line(*silent)
    assert line(*silent, *known).endswith(r"; the sharp $\mu$ is 2 to 40 times that of the statement.")
    assert line(known[0]).endswith(r"; the sharp $\mu$ is 2 times that of the statement.")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["{own}:positive"], "claim id must be that of a claim that lists problems"),
        (["{own}:positive", "{own}:make", "--budget", "0s"], "--budget must be a positive time"),
        (["zhang2023.lemma-5.4"], "claim id must be that of one claim"),
        (["{own}:positive", "{own}:make", "--seed", "-1"], "--seed must be a whole number"),
    ],
)
def test_what_is_asked_wrongly_is_refused_in_a_line_and_nothing_is_written(asked, expected, own, tmp_path, capfd):
    out = tmp_path / "review"
    assert main(["referee", *(part.format(own=own) for part in asked), "--out", str(out)]) == 2
    assert expected in capfd.readouterr().err
    assert not out.exists()
