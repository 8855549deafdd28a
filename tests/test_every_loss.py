"""Every kind of loss goes through every command that takes a problem, by a table."""

import json

import numpy as np
import pytest

from flowsim.cli import main
from flowsim.experiments.sweep.maps import Map
from flowsim.problem.architectures import _ARCHITECTURES

# A start that suits the architecture, and what it needs beside.
PROBLEMS = {
    "linear-attention": ("balanced", ["init.scale=0.3"]),
    "attention": ("random", ["init.scale=0.3"]),
    "masked-attention": ("random", ["init.scale=0.3"]),
    "looped": ("scaled-identity", ["init.scale=0.1", "model.loops=2"]),
    "multi-layer": ("scaled-identity", ["init.scale=0.1", "model.layers=2"]),
    "multi-head": ("random", ["init.scale=0.3", "model.heads=2"]),
    "initial-guess": ("random", ["init.scale=0.3", "model.heads=1", "model.guess=zero"]),
    "linear-block": ("random", ["init.scale=0.3"]),
    "softmax-attention": ("random", ["init.scale=0.3"]),
}
SAMPLED = ["loss.samples=128", "loss.replicates=4"]
# Other tests register architectures of their own.
OURS = {name: one for name, one in _ARCHITECTURES.items() if one.loss.__module__.startswith("flowsim.")}
# What takes a loss by Monte Carlo is the likeliest to be forgotten: once it was for linear attention.
LIKELIEST = [("sweep", name, "monte-carlo") for name in ("linear-attention", "attention", "softmax-attention")]
ROWS = [
    pytest.param(command, name, kind, marks=() if (command, name, kind) in LIKELIEST else pytest.mark.long)
    for name, architecture in OURS.items()
    for kind in architecture.losses
    for command in ("init", "run", "sweep")
]


def test_the_table_has_every_architecture():
    assert set(PROBLEMS) == set(OURS)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "architecture", "kind"), ROWS)
def test_every_loss_goes_through_every_command(command, architecture, kind, tmp_path, capsys):
    start, more = PROBLEMS[architecture]
    file = tmp_path / "problem.toml"
    file.write_text(
        '[task]\ncontext_length = 3\ncovariance = "identity"\ndimension = 2\n'
        f'[model]\narchitecture = "{architecture}"\n'
        f'[init]\nkind = "{start}"\n[loss]\nkind = "{kind}"\n[flow]\nt1 = 0.05\n'
    )
    words = [command, str(file)]
    for value in (*more, *(SAMPLED if kind == "monte-carlo" else ())):
        words += ["--set", value]
    out = tmp_path / "out"
    if command == "sweep":
        words += ["--over", "init.scale=0.2,0.3"]
    if command != "init":
        words += ["--out", str(out), "--quiet"]
    assert main.main(words) == 0, capsys.readouterr().err
    if command == "run":
        assert json.loads((out / "verdicts.json").read_text())["status"] == "reached-t1"
    if command == "sweep":
        assert np.all(Map.load(out)["outcome"] != "failed")


# Softmax attention to two features; its query is the first.
OWN = """
import jax.numpy as jnp
import numpy as np

import flowsim


def predict(scores, counts):
    weights = counts * jnp.exp(scores)
    return weights / jnp.sum(weights)


def make(scale: float = 0.1):
    counts, chances = flowsim.multinomial_outcomes(4, (0.5, 0.5))
    held = counts[:, 0] > 0
    counts, chances = counts[held].astype(float), chances[held] / np.sum(chances[held])
    targets = np.broadcast_to([1.0, 0.0], counts.shape)
    loss = flowsim.FiniteLoss(counts, targets, chances, predict=predict, realizable=True)
    return loss, scale * jnp.array([1.0, -1.0])


@flowsim.claim("mine.sum", "my notes", problems=({"make": make, "flow": {"t1": 1.0}},))
def conserved(flow):
    "the sum of the scores is conserved"
    return flowsim.equal(jnp.sum(flow.models, axis=1), jnp.sum(flow.start), 1.0)


@flowsim.claim("mine.grows", "my notes", problems=({"make": make, "flow": {"t1": 1.0}},))
def moves(flow):
    "the score of the query's feature grows"
    return flowsim.at_least(flow.velocity[:, 0], 0.0, size=flow.velocity[:, 0])

"""
# Five drawn prompts leave one direction of the six unseen.
EMPIRICAL = """
import jax.numpy as jnp
import numpy as np

import flowsim

TASK = flowsim.LinearRegression(np.eye(2), 5, label_noise=0.3)
OBSERVABLES = {"error": flowsim.EmpiricalLoss(TASK, 1, 1).population}


def make(scale: float = 0.1, tasks: int = 5, ridge: float = 0.0):
    return flowsim.EmpiricalLoss(TASK, tasks, 1, ridge=ridge), jnp.full((3, 2), scale)


@flowsim.claim("mine.unseen", "my notes", problems=({"make": make, "flow": {"t1": 1.0}},))
def unseen(loss, flow):
    "what no prompt sees stays"
    direction = jnp.linalg.svd(loss.root)[2][-1].reshape(3, 2)
    return flowsim.equal(jnp.tensordot(flow.models, direction), jnp.sum(flow.start * direction), 1.0)


@flowsim.claim("mine.nearer", "my notes", problems=({"make": make, "flow": {"t1": 1.0}},))
def moves(loss, flow):
    "the distance to the minima falls"
    distance = jnp.sum((flow.models - loss.least_model()[None]) ** 2, axis=(1, 2))
    return flowsim.at_most(distance, distance[0])

"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "sweep", "check", "audit"])
@pytest.mark.parametrize("text", [OWN, EMPIRICAL], ids=["finite", "empirical"])
def test_a_loss_of_a_users_file_goes_through_every_command(text, command, tmp_path, capsys):
    file, out = tmp_path / "own.py", tmp_path / "out"
    file.write_text(text)
    words = {
        "run": [f"{file}:make", "--set", "flow.t1=1", "--out", str(out), "--quiet"],
        "sweep": [f"{file}:make", "--over", "scale=0.1,0.2", "--set", "flow.t1=1", "--out", str(out), "--quiet"],
        "check": [f"{file}:moves"],
        "audit": ["--paper", str(file), "--out", str(out)],
    }
    assert main.main([command, *words[command]]) == 0, capsys.readouterr().err
    if command == "run":
        verdicts = json.loads((out / "verdicts.json").read_text())
        assert verdicts["status"] == "reached-t1"
        assert {one["verdict"] for one in verdicts["claims"]} == {"holds"}
    if command == "sweep":
        assert np.all(Map.load(out)["outcome"] != "failed")
    if command == "check":
        assert "holds" in capsys.readouterr().out
