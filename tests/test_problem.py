"""Problem files: what is read back is what was written, and every bad field is named in one line."""

import math

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from helpers import assert_close
from hypothesis import given

from flowsim import initialization
from flowsim.flow.trajectory import Status
from flowsim.problem import ProblemError, ProblemSpec, differing_field, spec_of, toml
from flowsim.problem.base import StopTable
from flowsim.problem.toml import fields
from flowsim.tasks import LinearRegression, RandomCovarianceRegression

GOOD = """
[task]
context_length = 10
covariance = [[0.5, 0, 0], [0, 1, 0], [0, 0, 2]]
[init]
scale = 0.3
theta = [[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]]
[flow]
times = [0.5, 1]
"""


def read(*overrides: str) -> ProblemSpec:
    return ProblemSpec.from_toml(GOOD, overrides)


# The round trip.

numbers = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False)
seeds = st.integers(0, 2**32 - 1)


def matrices(rows: int) -> st.SearchStrategy:
    return st.integers(1, 3).flatmap(lambda n: st.lists(st.lists(numbers, min_size=n, max_size=n), min_size=rows))


@st.composite
def problems(draw: st.DrawFn) -> dict:
    """Any problem that has the right form, whatever its mathematics."""
    covariance = draw(
        st.one_of(
            st.just("identity"),
            st.lists(st.lists(numbers, max_size=3), min_size=3, max_size=3),
            st.fixed_dictionaries(
                {"eigenvalues": st.lists(positive, min_size=3, max_size=3)}, optional={"rotation_seed": seeds}
            ),
        )
    )
    task = {"covariance": covariance, "context_length": draw(st.integers(1, 2**53) | st.just("inf"))}
    if covariance == "identity":
        task["dimension"] = 3
    starts = [
        {"kind": st.just("zeros")},
        {"kind": st.just("scaled-identity"), "scale": positive},
        {"kind": st.just("random"), "scale": positive, "seed": seeds},
        {"kind": st.sampled_from(["balanced", "unbalanced", "balanced-indefinite"]), "scale": positive,
         "theta": matrices(3)},
        {"kind": st.just("balanced"), "scale": positive, "rank": st.integers(1, 3), "seed": seeds},
        {"kind": st.just("explicit"), "U11": matrices(3), "u_minus1": numbers, "u12": st.lists(numbers)},
    ]  # fmt: skip
    init = draw(st.sampled_from(starts).flatmap(st.fixed_dictionaries))
    times = draw(st.lists(st.floats(1e-290, 1e290), unique=True, max_size=3).map(sorted))
    ends = [{"stop": {"excess": 1e-6}}, {"stop": {"grad_norm": 0.0}}, {"t1": max(times, default=1.0)}, {}]
    flow = {"times": times, "rtol": draw(st.floats(1e-14, 0.5)), "atol": draw(positive), **draw(st.sampled_from(ends))}
    lengths = st.integers(1, 2**53) | st.just("inf")
    optional = {"scale": positive, "label_noise": st.floats(0, 1e300), "query_covariance": st.just(covariance)}
    tests = st.none() | st.fixed_dictionaries(
        {"length": lengths}, optional={**optional, "covariance": st.just("identity")}
    )
    test = draw(tests)
    return {"task": task, "init": init, "flow": flow} | ({} if test is None else {"test": test})


@given(problems())
def test_the_resolved_form_reads_back_as_itself(tables):
    spec = spec_of(tables)
    assert ProblemSpec.from_toml(spec.to_toml()) == spec
    assert differing_field(toml.parse(spec.to_toml()), spec) is None
    assert hash(spec) == hash(spec_of(tables))


@given(problems(), st.floats(1e-14, 0.5))
def test_an_override_is_the_same_as_the_field(tables, rtol):
    text = spec_of(tables).to_toml()
    tables["flow"]["rtol"] = rtol
    assert ProblemSpec.from_toml(text, [f"flow.rtol={rtol}"]) == spec_of(tables)


def test_what_is_left_open_is_filled_in():
    spec = ProblemSpec.from_toml('[task]\ncontext_length=3\ncovariance="identity"\ndimension=4\n[init]\nscale=1')
    text = spec.to_toml()
    for line in (
        'weights = "isotropic"',
        'architecture = "linear-attention"',
        'kind = "balanced"',
        "rank = 4",
        "seed = 0",
        'kind = "exact"',
        "rtol = 1e-09",
        "stop = {excess = 1e-12, grad_norm = 1e-10}",
    ):
        assert line in text


def test_every_field_says_what_it_must_be():
    for name, field in fields(ProblemSpec).items():
        assert field.expected, name


# Overrides.


def test_overrides_take_toml_values_and_bare_words():
    spec = read("init.scale=0.5", "task.context_length = inf", "flow.solver=explicit", "flow.stop.excess=1e-3")
    assert (spec.init.scale, spec.task.context_length, spec.flow.solver) == (0.5, "inf", "explicit")
    assert spec.flow.stop == StopTable(excess=1e-3)
    assert read("task.covariance={eigenvalues=[1,2,3]}", "task.covariance.rotation_seed=4") == read(
        "task.covariance={eigenvalues=[1,2,3],rotation_seed=4}"
    )


@pytest.mark.parametrize("override", ["init.scale", "=3", "init.scale=", "init.scale=1 2", "task.covariance.x=1"])
def test_an_override_that_is_none_is_refused(override):
    with pytest.raises(ProblemError) as error:
        read(override)
    assert "\n" not in str(error.value)


# What a problem is made into.


def test_the_task_and_the_start_are_those_written():
    problem = read().build()
    assert_close(problem.task.mean_covariance, np.diag([0.5, 1.0, 2.0]))
    assert float(problem.task.context_length) == 10
    theta = np.array([[1, 0.5, 0], [0, 1, -0.5], [0.3, 0, 1]])
    assert_close(problem.start, initialization.balanced(0.3, theta))


@pytest.mark.parametrize("length", ["inf", math.inf])
def test_an_infinite_context(length):
    spec = spec_of({"task": {"covariance": [[1.0]], "context_length": length}, "init": {"kind": "zeros"}})
    assert math.isinf(spec.build().task.context_length)
    assert isinstance(spec, ProblemSpec) and spec.task.context_length == "inf"


def test_a_covariance_by_its_condition_number():
    geometric = read("task.covariance={condition=100,dimension=3,rotation_seed=7}")
    listed = read("task.covariance={eigenvalues=[1,0.1,0.01],rotation_seed=7}").build().task.mean_covariance
    np.testing.assert_allclose(geometric.build().task.mean_covariance, listed, rtol=1e-14)
    assert geometric.task.size == 3
    assert ProblemSpec.from_toml(geometric.to_toml()) == geometric


def test_a_covariance_by_its_eigenvalues():
    diagonal = read("task.covariance={eigenvalues=[1,2,3]}").build().task.mean_covariance
    assert_close(diagonal, np.diag([1.0, 2.0, 3.0]))
    rotated = read("task.covariance={eigenvalues=[1,2,3],rotation_seed=7}").build().task.mean_covariance
    np.testing.assert_allclose(np.linalg.eigvalsh(rotated), [1, 2, 3], rtol=1e-13)
    assert np.abs(np.asarray(rotated) - np.diag(np.diag(rotated))).max() > 0.1
    other = read("task.covariance={eigenvalues=[1,2,3],rotation_seed=8}").build().task.mean_covariance
    assert not np.allclose(rotated, other)


@pytest.mark.parametrize(
    ("init", "start"),
    [
        ({"kind": "zeros"}, lambda: initialization.zeros(2)),
        ({"kind": "scaled-identity", "scale": 0.5}, lambda: initialization.scaled_identity(0.5, 2)),
        ({"kind": "random", "scale": 0.5, "seed": 3}, lambda: initialization.random(0.5, 2, 3)),
        ({"scale": 0.5}, lambda: initialization.balanced(0.5, initialization.random_theta(2, 2, 0))),
        (
            {"scale": 0.5, "rank": 1, "seed": 3},
            lambda: initialization.balanced(0.5, initialization.random_theta(2, 1, 3)),
        ),
        (
            {"kind": "balanced-indefinite", "scale": 0.5, "seed": 3},
            lambda: initialization.balanced_indefinite(0.5, initialization.random_theta(2, 2, 3)),
        ),
        (
            {"kind": "unbalanced", "scale": 0.5, "theta": [[1.0], [2.0]]},
            lambda: initialization.unbalanced(0.5, np.array([[1.0], [2.0]])),
        ),
    ],
)
def test_every_kind_of_start(init, start):
    spec = spec_of({"task": {"covariance": [[1.0, 0.0], [0.0, 2.0]], "context_length": 5}, "init": init})
    assert_close(spec.build().start, start())


def test_an_explicit_start():
    weights = {"U11": [[1, 2], [3, 4]], "u_minus1": 5, "u12": [6, 7], "u21": [8, 9]}
    task = {"covariance": "identity", "dimension": 2, "context_length": 5}
    start = spec_of({"task": task, "init": {"kind": "explicit", **weights}}).build().start
    for name, value in weights.items():
        np.testing.assert_array_equal(getattr(start, name), value)


def test_a_problem_runs_as_asked():
    trajectory = read("flow.rtol=1e-6", "flow.t1=2").build().run(points_per_decade=2)
    assert {0.0, 0.5, 1.0, 2.0} <= set(np.asarray(trajectory.t).tolist())
    assert trajectory.status is Status.TIME
    assert trajectory.settings.rtol == 1e-6
    stopped = read("flow.rtol=1e-6", "flow.stop.excess=1e-2").build().run(points_per_decade=2)
    assert stopped.status is Status.EXCESS
    assert 1e-6 < stopped.excess[-1] / stopped.excess[0] < 1e-2


def difference(one: ProblemSpec, other: ProblemSpec) -> str | None:
    return differing_field(toml.parse(one.to_toml()), other)


def test_the_first_difference_is_named():
    assert difference(read(), read("init.scale=0.31")) == "init.scale"
    assert difference(read(), read("flow.stop.excess=1e-3")) == "flow.stop.excess"
    assert difference(read(), read("flow.t1=5")) == "flow.t1"
    assert difference(read("flow.budget_seconds=1"), read("flow.budget_seconds=100")) is None
    assert difference(read("flow.budget_seconds=1"), read()) is None


def test_without_a_test_there_is_none():
    assert read().build().test is None
    assert "test" not in read().to_toml()
    assert difference(read(), read("test.length=20")) == "test.length"
    assert difference(read("test.length=20"), read()) == "test.length"


def test_the_prompts_of_a_test_are_those_of_training_but_for_what_is_given():
    test = read("test.length=20").build().test
    assert isinstance(test, LinearRegression) and test.shifts == ()
    assert_close((test.covariance, test.context_length), (np.diag([0.5, 1.0, 2.0]), np.asarray(20.0)))
    assert read("test.length=inf").to_toml().endswith('[test]\nlength = "inf"\nscale = 1.0\nlabel_noise = 0.0\n')


def test_every_shift_of_a_test():
    covariances = ["test.covariance={eigenvalues=[1,2,3]}", "test.query_covariance=identity"]
    test = read("test.length=5", "test.scale=2", "test.label_noise=0.1", *covariances).build().test
    assert isinstance(test, LinearRegression) and test.shifts == ("label_noise", "query_covariance")
    expected = (4 * np.diag([1.0, 2.0, 3.0]), np.asarray(0.1), 4 * np.eye(3))
    assert_close((test.covariance, test.label_noise, test.query_covariance), expected)


def test_a_test_on_random_covariances():
    law = "{family='exponential',rate=1.0,dimension=3}"
    test = read("test.length=5", "test.scale=2", f"test.covariance_law={law}").build().test
    assert isinstance(test, RandomCovarianceRegression)
    assert_close(test.mean_covariance, 4 * np.eye(3))
    with pytest.raises(ProblemError, match="test.label_noise must be left out where covariances are random"):
        read("test.length=5", "test.label_noise=1", f"test.covariance_law={law}").build()
    with pytest.raises(ProblemError, match="test.covariance_law must be of the dimension of training, 3"):
        read("test.length=5", f"test.covariance_law={law.replace('3', '2')}").build()


# Bad input: (overrides, how the message begins, what else it holds).

BAD = [
    (["task.covariance=[[1,2,3],[2,9,0]]"], "task.covariance must be a square matrix", "(2, 3)"),
    (["task.covariance=[[1,2],[2]]"], "task.covariance must be an array of numbers", ""),
    (["task.covariance=[]"], "task.covariance must be", ""),
    (["task.covariance=[[1,0.5],[0,1]]"], "task.covariance must be symmetric", "0.5"),
    (["task.covariance=[[1,2],[2,1]]"], "task.covariance must be positive definite", "smallest eigenvalue is -1"),
    (["task.covariance=[[1,0],[0,nan]]"], "task.covariance must be finite", ""),
    (["task.covariance=[[inf]]"], "task.covariance must be finite", ""),
    (["task.covariance=[[1,'a']]"], "task.covariance must be a matrix (a list of rows)", '"a"'),
    (["task.covariance=3"], "task.covariance must be a matrix (a list of rows), a table {eigenvalues", "3"),
    (["task.covariance=identiti"], "task.covariance must be", 'did you mean "identity"?'),
    (["task.covariance=identity"], "task.dimension must be given", ""),
    (["task.covariance=identity", "task.dimension=0"], "task.dimension must be a whole number of at least 1", "0"),
    (["task.dimension=3"], "task.dimension must be left out", ""),
    (["task.covariance={eigenvalues=[1,0,2]}"], "task.covariance.eigenvalues must be positive", "0"),
    (["task.covariance={eigenvalues=[1,-2,3]}"], "task.covariance.eigenvalues must be positive", "-2"),
    (["task.covariance={eigenvalues=[]}"], "task.covariance must be", ""),
    (["task.covariance={eigenvalue=[1]}"], "task.covariance.eigenvalue is not a known field", 'mean "eigenvalues"?'),
    (["task.covariance={eigenvalues=[1,2],condition=3}"], "task.covariance.condition must be left out", "given"),
    (["task.covariance={eigenvalues=[1,2],dimension=2}"], "task.covariance.dimension must be left out", "given"),
    (["task.covariance={condition=3}"], "task.covariance.dimension must be a whole number of at least 1", "missing"),
    (["task.covariance={dimension=3}"], "task.covariance.condition must be a number of at least 1", "missing"),
    (["task.covariance={condition=0.5,dimension=3}"], "task.covariance.condition must be a number of", "0.5"),
    (["task.covariance={rotation_seed=1}"], "task.covariance.eigenvalues must be a list of numbers", "missing"),
    (["task.covariance={eigenvalues=[1,2,3],rotation_seed=-1}"], "task.covariance.rotation_seed must be", "-1"),
    (["task.context_length=0"], "task.context_length must be a whole number of at least 1", "0"),
    (["task.context_length=-3"], "task.context_length must be", "-3"),
    (["task.context_length=2.5"], "task.context_length must be a whole number", "2.5"),
    (["task.context_length=nan"], "task.context_length must be", "nan"),
    (["task.context_length=true"], "task.context_length must be", "true"),
    (["task.context_length=ten"], 'task.context_length must be a whole number of at least 1, "inf" or', '"ten"'),
    ([f"task.context_length={10**400}"], "task.context_length must be", "1000"),
    (["task.weights=isotrop"], 'task.weights must be "isotropic"', 'did you mean "isotropic"?'),
    (["task.covarience=identity"], "task.covarience is not a known field", 'did you mean "covariance"?'),
    (["task.xyz=1"], "task.xyz is not a known field", "context_length"),
    (["tasks.context_length=1"], "tasks is not a known field", 'did you mean "task"?'),
    (["model.architecture=liner-atention"], 'model.architecture must be one of linear-attention', "did you mean"),
    (["init.scale=0"], "init.scale must be a positive number", "0"),
    (["init.scale=-0.5"], "init.scale must be a positive number", "-0.5"),
    (["init.scale=inf"], "init.scale must be finite", ""),
    (["init.scale=[1]"], "init.scale must be a positive number", "[1]"),
    (["init.kind=balance"], "init.kind must be", 'did you mean "balanced"?'),
    (["init.kind=zeros"], "init.scale must be left out", "zeros"),
    (["init.theta=[[1,0],[0,1]]"], "init.theta must be an array of shape (3, any)", "(2, 2)"),
    (["init.theta=[[0],[0],[0]]"], "init.theta must be not zero", ""),
    (["init.theta=[[1],[0],['x']]"], "init.theta must be a matrix", '"x"'),
    (["init.kind=balanced-indefinite", "init.theta=[[1],[0],[2]]"], "init.theta must be a square matrix", "(3, 1)"),
    (["init.rank=2"], "init.rank must be left out where theta is given", ""),
    (["init.seed=2"], "init.seed must be left out where theta is given", ""),
    (["init.u_minus1=2"], "init.u_minus1 must be left out", "balanced"),
    (["flow.times=[1,1]"], "flow.times must be strictly increasing", "1 is followed by 1"),
    (["flow.times=[2,1]"], "flow.times must be strictly increasing", "2 is followed by 1"),
    (["flow.times=[-1,1]"], "flow.times must be positive", "-1"),
    (["flow.times=[0,1]"], "flow.times must be positive", "0"),
    (["flow.times=3"], "flow.times must be a list of numbers", "3"),
    (["flow.times=[1,nan]"], "flow.times must be finite", ""),
    (["flow.t1=0.7"], "flow.times must be at most t1 = 0.7", "1"),
    (["flow.t1=0"], "flow.t1 must be a positive number", "0"),
    (["flow.t1=5", "flow.stop={excess=1e-3}"], "flow.stop must be left out", "t1"),
    (["flow.rtol=0"], "flow.rtol must be at least 1e-14 and below 1", "0"),
    (["flow.rtol=1"], "flow.rtol must be at least 1e-14 and below 1", "1"),
    (["flow.atol=-1"], "flow.atol must be a positive number", "-1"),
    (["flow.solver=implicite"], "flow.solver must be", 'did you mean "implicit"?'),
    (["flow.stop.excess=1"], "flow.stop.excess must be at least 0 and below 1", "1"),
    (["flow.stop=3"], "flow.stop must be a table {excess, grad_norm}", "3"),
    (["flow.budget_seconds=0"], "flow.budget_seconds must be a positive number", "0"),
    (["loss.kind=printed"], 'loss.kind must be "exact"', "printed"),
    (["test.scale=2"], "test.length must be a whole number of at least 1", "missing"),
    (["test.length=0"], 'test.length must be a whole number of at least 1 or "inf"', "0"),
    (["test.length=2.5"], "test.length must be a whole number", "2.5"),
    (["test.length=nan"], "test.length must be", "nan"),
    (["test.length=ten"], "test.length must be", '"ten"'),
    (["test.length=2", "test.scale=0"], "test.scale must be a positive number", "0"),
    (["test.length=2", "test.scale=-2"], "test.scale must be a positive number", "-2"),
    (["test.length=2", "test.scale=inf"], "test.scale must be finite", ""),
    (["test.length=2", "test.label_noise=-0.1"], "test.label_noise must be a number of at least 0", "-0.1"),
    (["test.length=2", "test.covariance=[[1]]"], "test.covariance must be an array of shape (3, 3)", "(1, 1)"),
    (["test.length=2", "test.covariance=identiti"], "test.covariance must be", 'did you mean "identity"?'),
    (["test.length=2", "test.query_covariance=[[1,0,0],[0,1,0],[0,0,-1]]"], "test.query_covariance must be pos", "-1"),
    (["test.length=2", "test.lenght=3"], "test.lenght is not a known field", 'did you mean "length"?'),
    (["test=3"], "test must be a table {length", "3"),
    (["task=3"], "task must be a table {", "3"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "begins", "holds"), BAD, ids=[" ".join(case[0])[:60] for case in BAD])
def test_bad_input_names_the_field_in_one_line(overrides, begins, holds):
    with pytest.raises(ProblemError) as error:
        read(*overrides).build()
    message = str(error.value)
    assert message.startswith(begins)
    assert holds in message
    assert "\n" not in message
    assert len(message) < 240


TASK = "[task]\ncontext_length = 3\ncovariance = [[1.0]]\n"
EXPLICIT = TASK + '[init]\nkind = "explicit"\n'


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ("[task", "the problem must be TOML"),
        ("", "task must be a table {covariance, context_length"),
        ("[task]\ncovariance = [[1.0]]", "task.context_length must be a whole number of at least 1"),
        ("[task]\ncontext_length = 3", "task.covariance must be"),
        (TASK, "init.scale must be a positive number"),
        (TASK + "[init]\nscale = 1\nrank = 2", "init.rank must be at most the dimension"),
        (EXPLICIT + "U11 = [[1.0]]", "init.u_minus1 must be a number"),
        (EXPLICIT + "U11 = [[1, 2]]\nu_minus1 = 1", "init.U11 must be an array of shape (1, 1)"),
        (EXPLICIT + "U11 = [[1]]\nu_minus1 = 1\nu12 = [1, 2]", "init.u12 must be an array of shape (1,)"),
        (
            EXPLICIT + "U11 = [[1]]\nu_minus1 = 1\nu12 = [1]\n[test]\nlength = 3\nlabel_noise = 0.1",
            "init.u12 must be zero on prompts that are not as in training",
        ),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(text, begins):
    with pytest.raises(ProblemError) as error:
        ProblemSpec.from_toml(text).build()
    assert str(error.value).startswith(begins)
    assert "\n" not in str(error.value)


def test_float64_off_is_refused():
    with jax.enable_x64(False), pytest.raises(ValueError, match="^float64 must be switched on"):
        read().build()
