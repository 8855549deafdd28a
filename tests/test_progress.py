"""What takes long is shown: a bar on a terminal, and in a log lines that nothing is written over."""

import io
import sys

import pytest

from flowsim._core import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch, stream, **options) -> str:
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)
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


def test_a_terminal_has_a_bar_that_goes(monkeypatch):
    text = shown(monkeypatch, Terminal())
    assert text.count("\r") > 2
    assert "\n" not in text
    assert text.endswith("\r")


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_nothing_is_shown_where_it_is_not_asked_for(monkeypatch, stream):
    assert not shown(monkeypatch, stream(), shown=False)
