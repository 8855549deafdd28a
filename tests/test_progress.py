"""What takes long is shown: a bar on a terminal, and in a log lines that nothing is written over."""

import importlib
import io
import math
import sys

import jax.numpy as jnp
import pytest
from helpers import weight

import flowsim
from flowsim._core import progress
from flowsim.flow.schedule import percent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch, stream, **options) -> str:
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress_bar("judging", 3, unit="claim", **options) as bar:
        for _ in range(3):
            bar.update()
    return stream.getvalue()


def test_a_log_has_lines_and_no_carriage_returns(monkeypatch):
    lines = shown(monkeypatch, io.StringIO()).splitlines()
    assert lines
    assert all(line.startswith("judging: ") and "\r" not in line for line in lines)
    assert any("3/3" in line for line in lines)


def test_a_terminal_has_a_bar_before_anything_is_done_and_a_log_only_of_what_takes_long(monkeypatch):
    for stream, says in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.progress_bar("judging", 3, unit="claim"):
            assert ("judging:   0%" in stream.getvalue()) == says


def test_bars_within_bars_stay_lines(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with progress.progress_bar("judging", 3, unit="claim"):
        assert stream.getvalue().startswith("judging:   0%")
        with progress.progress_bar("gradient flow", 100, unit="%") as inner:
            inner.update(50)
    assert "\x1b" not in stream.getvalue()
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()][:2] == ["judging", "gradient flow"]


def test_a_terminal_has_a_bar_that_goes(monkeypatch):
    text = shown(monkeypatch, Terminal())
    assert text.count("\r") > 2
    assert "\n" not in text
    assert text.endswith("\r")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_shown_where_it_is_not_asked_for(monkeypatch, stream):
    assert not shown(monkeypatch, stream(), shown=False)


def test_a_run_whose_minimum_is_not_known_is_shown_to_get_on(monkeypatch):
    """By |grad| towards its stop: without its excess it stood at 0%."""
    loss = flowsim.FunctionLoss(lambda m: jnp.sum(m.x**2) / 2)
    shares, gradients = [], []

    def noted(chunks, stop, t1):
        shares.append(percent(chunks, stop, t1))
        gradients.append(float(chunks[-1].record.state.x[-1]))
        return shares[-1]

    monkeypatch.setattr(importlib.import_module("flowsim.flow.gradient_flow"), "percent", noted)
    flowsim.gradient_flow(loss, weight(1.0), progress=True, points_per_decade=400)
    assert 0 < shares[0] < shares[-1] < 100
    assert shares == [int(100 * math.log(gradient) / math.log(1e-10)) for gradient in gradients]
