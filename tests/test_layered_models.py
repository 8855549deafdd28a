"""Problem files of looped, multi-layer and masked models: read, refused in one line, run from file to report."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close

import flowsim
from flowsim import initialization, papers
from flowsim.cli import main
from flowsim.flow.trajectory import Trajectory
from flowsim.losses import LoopedLoss, MaskedAttentionLoss, MonteCarloLoss, MultiLayerLoss, ScalarLayersLoss
from flowsim.models import (
    LoopedAttention,
    MaskedAttention,
    MultiLayerAttention,
    ScalarLayers,
    ScalarLoop,
    SoftmaxAttention,
)
from flowsim.problem import ProblemError, ProblemSpec
from flowsim.problem.architectures import architecture_of
from flowsim.tasks import LinearRegression, RandomCovarianceRegression

pytestmark = pytest.mark.slow

TASK = "[task]\ncontext_length = 6\ncovariance = [[1.0, 0.25], [0.25, 0.5]]\n"
S = np.array([[1.0, 0.25], [0.25, 0.5]])
MODELS = {
    "looped": 'architecture = "looped"\nloops = 2\n',
    "multi-layer": 'architecture = "multi-layer"\nlayers = 2\n',
    "masked-attention": 'architecture = "masked-attention"\n',
}
SOFTMAX = {"softmax-attention": 'architecture = "softmax-attention"\n'}  # has no exact loss
SAMPLED = ["loss.kind=monte-carlo", "loss.samples=512", "init.kind=random", "init.scale=0.5"]


def read(model, *overrides):
    """The problem of a model from A = 0, or b = 0 and A = 0."""
    return ProblemSpec.from_toml(f'{TASK}[model]\n{(MODELS | SOFTMAX)[model]}[init]\nkind = "zeros"\n', overrides)


@pytest.mark.parametrize(
    ("model", "weights", "resolved"),
    [
        ("looped", "inverse-covariance", {"loops": 2, "layers": None, "symmetric": True}),
        ("multi-layer", "inverse-covariance", {"loops": None, "layers": 2, "symmetric": True}),
        ("masked-attention", "isotropic", {"loops": None, "layers": None, "symmetric": None}),
    ],
)
def test_defaults_of_an_architecture_are_filled_in_and_read_back(model, weights, resolved):
    spec = read(model)
    assert spec.task.weights == weights
    assert {name: getattr(spec.model, name) for name in resolved} == resolved
    assert ProblemSpec.from_toml(spec.to_toml()) == spec


def test_a_looped_flow_is_among_symmetric_matrices_where_it_stays_so_by_itself():
    A, lopsided = "init.A=[[1,2],[2,1]]", "init.A=[[1,2],[3,1]]"
    explicit = ["init.kind=explicit"]
    assert read("looped", *explicit, A).model.symmetric
    assert not read("looped", *explicit, lopsided).model.symmetric
    assert not read("looped", *explicit, A, "init.u=[0,1]").model.symmetric
    assert not read("looped", "task.weights=isotropic").model.symmetric
    assert read("looped", "task.weights=isotropic", "model.symmetric=true").model.symmetric
    assert read("multi-layer", "task.weights=isotropic").model.symmetric


LOOPED_STARTS = [
    (["init.kind=zeros"], np.zeros((2, 2))),
    (["init.kind=scaled-identity", "init.scale=0.5"], 0.5 * np.eye(2)),
    (["init.kind=random", "init.scale=0.5", "init.seed=3"], initialization.symmetric(0.5, 2, 3)),
    (["init.kind=random", "init.scale=0.5", "model.symmetric=false"], initialization.gaussian(0.5, 2, 0)),
    (["init.kind=random-diagonal", "init.scale=0.5"], initialization.diagonal(0.5, 2, 0)),
    (["init.kind=explicit", "init.A=[[1,2],[2,1]]"], [[1.0, 2.0], [2.0, 1.0]]),
]


@pytest.mark.parametrize(("overrides", "A"), LOOPED_STARTS, ids=[" ".join(case[0]) for case in LOOPED_STARTS])
def test_every_start_of_a_looped_model(overrides, A):
    assert_close(read("looped", *overrides).build().start, LoopedAttention(A, loops=2))


def test_every_start_of_a_model_of_layers():
    for kind, draw in (("random", initialization.symmetric), ("random-diagonal", initialization.diagonal)):
        spec = read("multi-layer", f"init.kind={kind}", "init.scale=0.5", "init.seed=3")
        assert_close(spec.build().start, MultiLayerAttention(draw(0.5, 2, 3, layers=2)))
    matrices = [[[1.0, 2.0], [2.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
    explicit = read("multi-layer", "init.kind=explicit", f"init.A={matrices}")
    assert_close(explicit.build().start, MultiLayerAttention(matrices))
    assert ProblemSpec.from_toml(explicit.to_toml()) == explicit
    free = read("multi-layer", "init.kind=random", "init.scale=0.5", "model.symmetric=false").build().start
    assert_close(free, MultiLayerAttention(initialization.gaussian(0.5, 2, 0, layers=2), symmetric=False))
    equal = read("multi-layer", "init.kind=scaled-identity", "init.scale=0.5").build().start
    assert_close(equal.A, jnp.stack([0.5 * jnp.eye(2)] * 2))


def test_every_start_of_a_masked_layer():
    assert_close(read("masked-attention").build().start, MaskedAttention(np.zeros(3), np.zeros((3, 2))))
    drawn = read("masked-attention", "init.kind=random", "init.scale=0.5", "init.seed=3").build().start
    assert_close(drawn, initialization.masked(0.5, 2, 3))
    weights = ["init.b=[1,2,3]", "init.A=[[1,2],[3,4],[5,6]]"]
    explicit = read("masked-attention", "init.kind=explicit", *weights).build().start
    assert_close(explicit, MaskedAttention([1.0, 2.0, 3.0], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]))


def test_softmax_attention_is_read_drawn_and_sampled():
    spec = read("softmax-attention", *SAMPLED, "init.seed=3")
    assert (spec.model.layers, spec.task.weights) == (1, "isotropic")
    assert ProblemSpec.from_toml(spec.to_toml()) == spec
    assert_close(spec.build().start, initialization.softmax(0.5, 2, 3))
    deep = read("softmax-attention", *SAMPLED, "init.seed=3", "model.layers=2").build().start
    assert_close((deep.W_PV[:1], deep.W_KQ[:1]), (spec.build().start.W_PV, spec.build().start.W_KQ))
    assert len(np.unique(np.concatenate([deep.W_PV, deep.W_KQ]))) == 36
    weights = np.arange(18.0).reshape(2, 1, 3, 3)
    given = [f"init.{name}={value.tolist()}" for name, value in zip(("W_PV", "W_KQ"), weights, strict=True)]
    explicit = read("softmax-attention", *SAMPLED[:2], "init.kind=explicit", *given)
    assert_close(explicit.build().start, SoftmaxAttention(*weights))
    assert ProblemSpec.from_toml(explicit.to_toml()) == explicit
    problem = read("softmax-attention", *SAMPLED, "loss.seed=4").build()
    direct = MonteCarloLoss(LinearRegression(S, 6), samples=512, key=jax.random.key(4), factor=0.5)
    assert problem.loss(problem.start) == direct(problem.start)
    law = '[task]\ncontext_length = 6\ncovariance_law = {family = "exponential", rate = 1.0, dimension = 2}\n'
    random = ProblemSpec.from_toml(f"{law}[model]\n{SOFTMAX['softmax-attention']}", SAMPLED)
    assert isinstance(random.build().task, RandomCovarianceRegression)


def test_the_loss_is_that_of_the_file():
    """Field by field the loss that a user would make; the limit is the loss of the task with n infinite."""
    task = LinearRegression(S, 6, weights="inverse-covariance")
    endless = LinearRegression(S, np.inf, weights="inverse-covariance")
    for model, overrides, loss in (
        ("looped", [], LoopedLoss(task, 2)),
        ("looped", ["loss.kind=printed"], LoopedLoss(task, 2, form="printed")),
        ("looped", ["loss.kind=limit"], LoopedLoss(endless, 2)),
        ("looped", ["model.symmetric=false"], LoopedLoss(task, 2, symmetric=False)),
        ("multi-layer", [], MultiLayerLoss(task, 2)),
        ("masked-attention", ["loss.kind=limit"], MaskedAttentionLoss(LinearRegression(S, np.inf))),
    ):
        (ours, one), (theirs, other) = map(jax.tree.flatten, (read(model, *overrides).build().loss, loss))
        assert one == other
        assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(ours, theirs, strict=True))


RESTRICT = "flow.restrict=inverse-covariance"
EXPLICIT = ["init.kind=explicit"]


def test_every_start_of_a_restricted_flow():
    def start(model, *overrides):
        spec = read(model, *overrides, RESTRICT)
        assert ProblemSpec.from_toml(spec.to_toml()) == spec
        return architecture_of(spec.model.architecture).make_start(
            spec.init, spec.task.build(), spec.model, spec.flow.restrict
        )

    assert_close((start("multi-layer"), start("looped")), (ScalarLayers([0.0, 0.0]), ScalarLoop(0.0, loops=2)))
    stream = "model.residual_stream=true"
    equal = start("multi-layer", "init.kind=scaled-identity", "init.scale=0.5", stream)
    assert_close(equal, ScalarLayers([0.5, 0.5], [0.5]))
    a, b = np.split(np.ravel(initialization.gaussian(0.5, 1, 3, layers=3)), [2])
    drawn = start("multi-layer", "init.kind=random", "init.scale=0.5", "init.seed=3", stream)
    assert_close(drawn, ScalarLayers(a, b))
    assert_close(start("multi-layer", *EXPLICIT, "init.a=[1,2]"), ScalarLayers([1.0, 2.0]))
    assert_close(start("multi-layer", *EXPLICIT, "init.a=[1,2]", "init.b=[3]", stream), ScalarLayers([1.0, 2.0], [3.0]))
    # Beyond the depths at which the loss is known in matrices.
    assert_close(start("looped", *EXPLICIT, "init.a=2", "model.loops=9"), ScalarLoop(2.0, loops=9))


def test_a_restricted_flow_is_that_of_the_paper_s_appendix():
    """ahn2023: dA_i/dt = -(1/d) Tr(S grad_{A_i} f) S^-1, with the gradient of the loss in matrices."""
    start = [*EXPLICIT, "init.a=[0.3,0.7]", RESTRICT]
    restricted, matrices = read("multi-layer", *start).build(), read("multi-layer").build()
    loss = restricted.loss
    assert isinstance(loss, ScalarLayersLoss)
    slope = loss.gradient(restricted.start).a * loss.speeds(restricted.start).a
    gradient = matrices.loss.gradient(restricted.start.attention(S)).A
    np.testing.assert_allclose(slope, np.trace(S @ np.asarray(gradient), axis1=1, axis2=2) / 2, rtol=1e-11)
    for kind in ("exact", "limit"):
        same = [read("multi-layer", f"loss.kind={kind}", *more).build().loss for more in (start, [])]
        assert_close(same[0](restricted.start), same[1](restricted.start.attention(S)), rtol=1e-12)


def test_for_a_multiple_of_the_identity_a_restricted_flow_is_the_flow_of_the_matrices(tmp_path, monkeypatch):
    """Saved as matrices too, each at its own time."""
    monkeypatch.setattr(papers, "ALL_CLAIMS", ())
    text = f"[task]\ncontext_length = 6\ncovariance = [[0.5, 0], [0, 0.5]]\n[model]\n{MODELS['multi-layer']}[init]\n"
    flow = '[flow]\ntimes = [0.5, 2]\nt1 = 2\nrtol = 1e-10\nsolver = "explicit"\n'
    (tmp_path / "problem.toml").write_text(
        f'{text}kind = "explicit"\na = [0.3, 0.7]\n{flow}restrict = "inverse-covariance"'
    )
    assert main.main(["run", str(tmp_path / "problem.toml"), "--out", str(tmp_path / "out"), "--quiet"]) == 0
    A = [[[0.6, 0.0], [0.0, 0.6]], [[1.4, 0.0], [0.0, 1.4]]]
    free = ProblemSpec.from_toml(f'{text}kind = "explicit"\nA = {A}\n{flow}').build().run(points_per_decade=0)
    restricted = Trajectory.load(tmp_path / "out" / "trajectory.npz")
    assert isinstance(restricted.models, ScalarLayers)
    with np.load(tmp_path / "out" / "trajectory.npz", allow_pickle=False) as file:
        here = np.searchsorted(file["t"], free.t)
        np.testing.assert_array_equal(file["t"][here], free.t)
        np.testing.assert_allclose(file["A"][here], free.models.A, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(file["grad_norm_sq"][here], free.grad_norm_sq, rtol=1e-7)
        np.testing.assert_allclose(file["a"], 0.5 * file["A"][:, :, 0, 0], rtol=1e-14)
    limits = json.loads((tmp_path / "out" / "verdicts.json").read_text())["limits"]
    np.testing.assert_allclose(limits["A"], np.asarray(limits["a"])[:, None, None] * np.eye(2) / 0.5, rtol=1e-14)


BAD = [
    ("looped", ["model.loops=0"], "model.loops must be a whole number of at least 1, but it is 0"),
    ("looped", ["model.loops=8"], "model.loops must be between 1 and 7, where the loss over symmetric matrices is ex"),
    ("looped", ["model.loops=5", "model.symmetric=false"], "model.loops must be between 1 and 4, where"),
    ("looped", ["model.layers=2"], 'model.layers must be left out with architecture = "looped", but it is given'),
    ("looped", ["model.symmetric=1"], "model.symmetric must be true or false, but it is 1"),
    ("looped", ["model.loop=1"], 'model.loop is not a known field; did you mean "loops"?'),
    ("looped", ["init.kind=balanced", "init.scale=1"], 'init.kind must be one of "zeros", "scaled-identity", "ran'),
    ("looped", ["init.scale=1"], 'init.scale must be left out with kind = "zeros" and architecture = "looped"'),
    ("looped", ["init.kind=random"], 'init.scale must be a positive number, but it is missing (kind = "random")'),
    ("looped", [*EXPLICIT], "init.A must be a matrix (a list of rows), or a list of them"),
    ("looped", [*EXPLICIT, "init.A=[[1,2]]"], "init.A must be an array of shape (2, 2), but its shape is (1, 2)"),
    ("looped", [*EXPLICIT, "init.A=[[1,2],[2]]"], "init.A must be an array of numbers of shape (2, 2)"),
    ("looped", [*EXPLICIT, "init.A=[[1,2],[3,4]]", "model.symmetric=true"], "init.A must be symmetric, but it differs"),
    (
        "looped",
        [*EXPLICIT, "init.A=[[1,0],[0,1]]", "init.u=[0,1]", "model.symmetric=true"],
        "init.u must be zero with model.symmetric = true",
    ),
    ("looped", [*EXPLICIT, "init.A=[[1,0],[0,1]]", "init.u=[1]"], "init.u must be an array of shape (2,)"),
    ("looped", [*EXPLICIT, "init.U11=[[1,0],[0,1]]", "init.A=[[1]]"], "init.U11 must be left out with kind"),
    ("looped", ["loss.kind=printed", "task.weights=isotropic"], 'loss.kind must be "exact" or "limit" unless the'),
    ("looped", ["task.weights=isotropi"], 'task.weights must be "isotropic" or "inverse-covariance"'),
    ("looped", ["task.context_length=0"], "task.context_length must be a whole number of at least 1"),
    ("looped", ["test.length=5"], 'test must be left out with architecture = "looped", but it is given'),
    ("multi-layer", ["model.layers=5"], "model.layers must be between 1 and 4, where the loss over symmetric matrices"),
    ("multi-layer", ["model.layers=4", "model.symmetric=false"], "model.layers must be between 1 and 3, where"),
    ("multi-layer", ["loss.kind=printed"], 'loss.kind must be "exact" or "limit" or "monte-carlo" with arch'),
    ("multi-layer", [*EXPLICIT, "init.A=[[1,0],[0,1]]"], "init.A must be an array of shape (2, 2, 2)"),
    ("multi-layer", [*EXPLICIT, "init.A=[[[1,0],[0,1]],[[1,2],[3,4]]]"], "init.A must be symmetric, but it differs"),
    ("looped", ["loss.kind=printed", RESTRICT], 'loss.kind must be "exact" or "limit" with flow.restrict = "inv'),
    ("looped", ["task.weights=isotropic", RESTRICT], 'task.weights must be "inverse-covariance" with flow.res'),
    ("looped", ["model.residual_stream=true", RESTRICT], "model.residual_stream must be left out with architecture"),
    ("looped", [*EXPLICIT, "init.a=[1]", RESTRICT], "init.a must be an array of shape (), but its shape is (1,)"),
    ("looped", [*EXPLICIT, "init.A=[[1,0],[0,1]]", RESTRICT], "init.a must be a number or a list of numbers"),
    ("looped", ["flow.restrict=inverse"], 'flow.restrict must be "inverse-covariance" or "eigenbasis"'),
    ("multi-layer", ["model.symmetric=false", RESTRICT], "model.symmetric must be true where flow.restrict is given"),
    ("multi-layer", ["model.residual_stream=true"], 'model.residual_stream must be false unless flow.restrict = "inv'),
    ("multi-layer", ["init.kind=random-diagonal", RESTRICT], 'init.kind must be one of "zeros", "scaled-identity", "r'),
    ("multi-layer", [*EXPLICIT, "init.a=[1]", RESTRICT], "init.a must be an array of shape (2,)"),
    ("multi-layer", [*EXPLICIT, "init.a=[1,2]", "init.b=[1]", RESTRICT], "init.b must be left out with model.residual"),
    (
        "multi-layer",
        [*EXPLICIT, "init.a=[1,2]", "model.residual_stream=true", RESTRICT],
        "init.b must be a list of numbers with model.residual_stream = true, but it is missing",
    ),
    ("masked-attention", [RESTRICT], 'flow.restrict must be left out with architecture = "masked-attention"'),
    ("masked-attention", ["task.weights=inverse-covariance"], 'task.weights must be "isotropic" with architecture'),
    ("masked-attention", ["init.kind=scaled-identity"], 'init.kind must be one of "zeros", "random", "explicit" with'),
    ("masked-attention", [*EXPLICIT, "init.b=[1,2,3]"], "init.A must be a matrix"),
    ("masked-attention", [*EXPLICIT, "init.b=[1,2]", "init.A=[[1,2],[3,4],[5,6]]"], "init.b must be an array of shape"),
    ("masked-attention", ["model.loops=1"], 'model.loops must be left out with architecture = "masked-attention"'),
    ("softmax-attention", [], 'loss.kind must be "monte-carlo" with architecture = "softmax-attention", but'),
    ("softmax-attention", [*SAMPLED, "init.kind=zeros"], 'init.kind must be one of "random", "explicit" with'),
    ("softmax-attention", [*SAMPLED[:2], *EXPLICIT], "init.W_PV must be a matrix (a list of rows), or a list of them"),
    ("softmax-attention", [*SAMPLED, "init.W_PV=[[[1]]]"], 'init.W_PV must be left out with kind = "random"'),
    ("softmax-attention", [*SAMPLED, RESTRICT], 'flow.restrict must be left out with architecture = "softmax-'),
]  # fmt: skip


@pytest.mark.parametrize(("model", "overrides", "begins"), BAD, ids=[" ".join([m, *o])[:70] for m, o, _ in BAD])
def test_bad_input_names_the_field_in_one_line(model, overrides, begins):
    with pytest.raises(ProblemError) as error:
        read(model, *overrides).build()
    message = str(error.value)
    assert message.startswith(begins)
    assert "\n" not in message
    assert len(message) < 220


@pytest.mark.parametrize(
    ("text", "begins"),
    [
        ('[model]\narchitecture = "looped"\n', 'model.loops must be a whole number of at least 1, but it is miss'),
        ('[model]\narchitecture = "multi-layer"\n', "model.layers must be a whole number of at least 1, but it is mis"),
        ('[model]\narchitecture = "looped"\nloops = 1\n', "init.kind must be one of"),
        ("[model]\nloops = 1\n", 'model.loops must be left out with architecture = "linear-attention"'),
        ('[loss]\nkind = "limit"\n', 'loss.kind must be "exact" or "monte-carlo" with architecture'),
        ('[init]\nkind = "random-diagonal"\nscale = 1\n', 'init.kind must be one of "balanced", '),
        ('[init]\nkind = "zeros"\nA = [[1.0]]\n', "init.A must be left out with kind"),
    ],
)  # fmt: skip
def test_what_is_missing_or_of_another_architecture_is_named(text, begins):
    with pytest.raises(ProblemError) as error:
        ProblemSpec.from_toml(TASK + text).build()
    assert str(error.value).startswith(begins)


@pytest.mark.parametrize("model", MODELS)
def test_random_covariances_are_refused(model):
    law = '[task]\ncontext_length = 6\ncovariance_law = {family = "exponential", rate = 1.0, dimension = 2}\n'
    with pytest.raises(ProblemError, match=r"^task.covariance_law must be left out with .* for one fixed covariance"):
        ProblemSpec.from_toml(f'{law}[model]\n{MODELS[model]}[init]\nkind = "zeros"\n')


# From file to report. The explicit method compiles fastest.

FLOW = '[init]\nkind = "random"\nscale = 0.3\n[flow]\nt1 = 0.2\nrtol = 1e-8\nsolver = "explicit"\n'


def never_below_the_minimum(loss, trajectory):
    """The excess is not negative."""
    return flowsim.at_least(trajectory.excess, 0.0, size=trajectory.excess[0])


def claim_about(*models):
    return flowsim.Claim(f"test.{len(models)}", "test", "excess >= 0", never_below_the_minimum, models=models)


# One about any model, one about these architectures, and one about another.
CLAIMS = (
    claim_about(),
    claim_about(LoopedAttention, MultiLayerAttention, MaskedAttention),
    *flowsim.find_claims(flowsim.ALL_CLAIMS, "zhang2023.lemma-5.4.pl"),
)


@pytest.fixture(scope="module", params=MODELS)
def finished(request, tmp_path_factory):
    """The folder of a finished run of each architecture, its problem, and what its command printed."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(papers, "ALL_CLAIMS", CLAIMS)
        (folder / "problem.toml").write_text(f"{TASK}[model]\n{MODELS[request.param]}{FLOW}")
        assert main.main(["run", str(folder / "problem.toml"), "--out", str(folder / "out"), "--quiet"]) == 0
    return request.param, folder, ProblemSpec.from_toml((folder / "out" / "problem.toml").read_text()).build()


def test_the_trajectory_holds_each_weight_under_its_name(finished):
    model, folder, problem = finished
    with np.load(folder / "out" / "trajectory.npz", allow_pickle=False) as file:
        T = file["t"].size
        shapes = {
            "looped": {"A": (T, 2, 2), "u": (T, 2)},
            "multi-layer": {"A": (T, 2, 2, 2)},
            "masked-attention": {"b": (T, 3), "A": (T, 3, 2)},
        }[model]
        assert {name: file[name].shape for name in shapes} == shapes
        assert set(file.files) == {*shapes, "t", "loss", "excess", "grad_norm_sq", "dissipated", "metadata"}
    trajectory = Trajectory.load(folder / "out" / "trajectory.npz")
    assert_close(trajectory.start, problem.start)
    assert_close(trajectory.loss[-1], problem.loss(trajectory.end), rtol=1e-12)
    assert trajectory.certificates.energy_defect < 1e-6


def test_the_verdicts_say_what_is_known_and_list_no_claim_about_another_architecture(finished):
    _, folder, problem = finished
    document = json.loads((folder / "out" / "verdicts.json").read_text())
    assert document["constants"]["minimum"] == pytest.approx(float(problem.loss.minimum), rel=1e-15)
    for name, weight in document["limits"].items():
        np.testing.assert_allclose(weight, getattr(problem.minimizer, name), rtol=1e-15)
    assert {entry["id"]: entry["verdict"] for entry in document["claims"]} == {"test.0": "holds", "test.3": "holds"}


def test_the_report_and_its_figures_are_of_the_model(finished):
    model, folder, _ = finished
    figures = {path.stem for path in (folder / "out" / "figures").iterdir()}
    every = {"excess", "conservation", "modes", "weights"}
    assert figures == every | ({"distance-to-optimum"} if model == "looped" else set())
    page = (folder / "out" / "report.html").read_text()
    assert f"{model}, " in page
    assert "least known loss" in page
    assert "Assumption 3.3" not in page


def test_init_says_what_is_known_of_the_start(finished, capsys):
    _, folder, problem = finished
    path = str(folder / "problem.toml")
    assert main.main(["init", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["constants"]["loss"] == pytest.approx(float(problem.loss(problem.start)), rel=1e-13)
    assert document["constants"]["excess"] == pytest.approx(float(problem.loss.excess(problem.start)), rel=1e-13)
    assert main.main(["init", path]) == 0
    text = capsys.readouterr().out
    assert f"{float(problem.loss.minimum):.10g}" in text and "A there" in text
    assert main.main(["init", path, "--risk", "0.1"]) == 2
    assert "--risk must be left out" in capsys.readouterr().err


def test_a_claim_about_another_model_does_not_apply(finished):
    _, folder, problem = finished
    verdict = flowsim.check(CLAIMS[-1], problem.loss, Trajectory.load(folder / "out" / "trajectory.npz"))
    assert verdict.verdict is flowsim.Judgement.NOT_APPLICABLE
    assert verdict.note == "Not met: a model of the class LinearAttention."


def test_cells_of_a_sweep_are_integrated_one_by_one(tmp_path):
    """The quantities of a cell against its trajectory; no start is near a saddle, as A = 0 is none."""
    tables = {
        "task": {"context_length": 6, "covariance": S.tolist()},
        "model": {"architecture": "looped", "loops": 2},
        "init": {"kind": "random", "scale": 0.3},
        "flow": {"t1": 0.2, "rtol": 1e-8, "solver": "explicit"},
    }
    table = flowsim.sweep(tables, {"init.scale": [0.3, 0.6]}, out=tmp_path)
    for place in range(2):
        run = table.problem(place).build().run()
        assert table["excess_end"][place] == pytest.approx(float(run.excess[-1]), rel=1e-12)
        least = np.min(run.grad_norm_sq / run.excess)
        assert table["sharp_mu_pl"][place] == pytest.approx(float(least), rel=1e-12)
    assert np.all(np.isnan(table["mu"])) and not np.any(table["condition_met"])
    assert np.all(np.isinf(table["closest_to_saddle"]))
    assert table["outcome"].tolist() == ["unfinished"] * 2


@pytest.mark.parametrize("model", ["multi-layer"])
def test_a_flow_in_the_eigenbasis_is_that_of_the_matrices(model):
    overrides = ["init.kind=scaled-identity", "init.scale=0.2", "flow.t1=0.5", "flow.rtol=1e-10"]
    covariance = "task.covariance={eigenvalues=[0.5,0.5,2.0],rotation_seed=1}"
    matrices = read(model, covariance, *overrides).build()
    spectral = read(model, covariance, *overrides, "flow.restrict=eigenbasis").build()
    assert spectral.task.multiplicities.tolist() == [2.0, 1.0]
    run, reduced = matrices.run(), spectral.run()
    found = spectral.matrices(reduced.models)["eigenvalues"][-1].reshape(-1)
    ends = run.end.A.reshape(-1, 3, 3)
    expected = np.concatenate([np.unique(np.linalg.eigvalsh(A).round(6)) for A in ends])
    np.testing.assert_allclose(np.sort(found), np.sort(expected), atol=1e-6)
    assert_close(reduced.loss[-1], run.loss[-1], rtol=1e-8)


def test_an_eigenbasis_takes_no_space_and_any_length():
    overrides = ['task.covariance="identity"', "task.dimension=1000000", f"task.context_length={10**30}"]
    spec = read("looped", *overrides, "flow.restrict=eigenbasis")
    assert ProblemSpec.from_toml(spec.to_toml()) == spec
    problem = spec.build()
    assert_close(problem.loss(problem.start), jnp.asarray(1e6), rtol=1e-12)
    with pytest.raises(ProblemError, match='init.kind must be one of "zeros", "scaled-identity", "random-diagonal"'):
        read("looped", "flow.restrict=eigenbasis", "init.kind=random", "init.scale=1.0")
