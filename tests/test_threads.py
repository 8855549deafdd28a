"""Decompositions take one thread while a flow is integrated, and what was there before comes back."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import pytest
import threadpoolctl

import flowsim
from flowsim.flow.solvers.threads import blas_in_one_thread, cores


def threads_of_blas() -> set[int]:
    return {library["num_threads"] for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def before() -> set[int]:
    with blas_in_one_thread():  # so that the libraries are loaded
        pass
    # No limit of this thread's own: threadpoolctl lets no other thread change it meanwhile, and nothing could go wrong.
    return threads_of_blas()


def test_blas_takes_one_thread_inside_and_as_many_as_before_after(before):
    with pytest.raises(KeyError), blas_in_one_thread():
        assert threads_of_blas() == {1}
        raise KeyError
    assert threads_of_blas() == before


@pytest.mark.parametrize("first_out_is_first_in", [True, False])
def test_blocks_that_overlap_in_two_threads_leave_what_was_there_before(before, first_out_is_first_in):
    inside, may_end = threading.Event(), threading.Event()

    def second():
        with blas_in_one_thread():
            inside.set()
            assert may_end.wait(10)

    other = threading.Thread(target=second)
    with blas_in_one_thread():
        other.start()
        assert inside.wait(10)
        if not first_out_is_first_in:
            may_end.set()
            other.join()
    may_end.set()
    other.join()
    assert threads_of_blas() == before


def test_flows_in_several_threads_leave_what_was_there_before(before):
    loss = flowsim.FunctionLoss(lambda w: jnp.sum((w - 1.0) ** 2) / 2, minimum=0.0)
    with ThreadPoolExecutor(4) as pool:
        runs = list(pool.map(lambda size: flowsim.gradient_flow(loss, jnp.full(3, size)), [0.1, 0.2, 0.3, 0.4, 0.5]))
    assert all(run.status.finished for run in runs)
    assert threads_of_blas() == before


def test_there_is_a_core():
    assert cores() >= 1
