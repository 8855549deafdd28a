"""What the first of several processes sends to the others: numbers, arrays and errors, nothing that could be run."""

import errno
import os
import pickle

import numpy as np
import pytest

from flowsim._core import hosts as hosts
from flowsim._core.checks import ProblemError
from flowsim._core.hosts import by_first, pack, unpack


@pytest.fixture
def two(monkeypatch):
    """Calls a function as the first process, and gives what the second receives of it."""
    sent = []
    monkeypatch.setattr(hosts, "are_several", lambda mesh: True)

    def broadcast(value):
        sent.append(value)
        return value

    def both(function):
        sent.clear()
        monkeypatch.setattr(hosts.multihost_utils, "broadcast_one_to_all", broadcast)
        monkeypatch.setattr(hosts, "is_first", lambda mesh: True)
        outcomes = [outcome(lambda: by_first(None, function))]
        messages = iter(list(sent))
        monkeypatch.setattr(hosts.multihost_utils, "broadcast_one_to_all", lambda value: next(messages))
        monkeypatch.setattr(hosts, "is_first", lambda mesh: False)
        return [*outcomes, outcome(lambda: by_first(None, lambda: pytest.fail("called by the second")))]

    return both


def outcome(function):
    try:
        return function()
    except Exception as error:
        return error


def test_numbers_arrays_and_nothing_arrive(two):
    assert two(lambda: 0.1) == [0.1, 0.1]
    assert two(lambda: None) == [None, None]
    arrays = {"t": np.arange(3.0), "file": np.asarray("word"), "none": np.zeros((0, 2)), "large": np.ones(10_000)}
    for received in two(lambda: arrays):
        assert set(received) == set(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(received[name], array)
            assert received[name].dtype == array.dtype


def test_errors_arrive_as_what_they_are(two):
    def fails(error):
        def function():
            raise error

        return function

    for received in two(fails(ProblemError("init.scale must be positive, but it is 0"))):
        assert isinstance(received, ProblemError) and "init.scale must be positive" in str(received)
    for received in two(fails(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.npz"))):
        assert isinstance(received, OSError) and received.errno == errno.ENOSPC and "x.npz" in str(received)
    first, second = two(fails(KeyError("x")))
    assert isinstance(first, KeyError) and isinstance(second, RuntimeError) and "KeyError: 'x'" in str(second)


def test_what_arrives_runs_no_code():
    class Harm:
        def __reduce__(self):
            return os.abort, ()

    with pytest.raises(ValueError):
        unpack(pickle.dumps(Harm()))
    with pytest.raises(ValueError):
        pack({"x": np.asarray(Harm(), dtype=object)})
