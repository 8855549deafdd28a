"""Axis labels for the fields of a problem file, with their symbols."""

_NAMES = {
    "task.covariance": r"covariance  $\Lambda$",
    "task.context_length": "context length  $N$",
    "task.dimension": "dimension  $d$",
    "task.covariance.dimension": "dimension  $d$",
    "task.covariance.condition": r"condition number of  $\Lambda$",
    "task.covariance.scale": r"largest eigenvalue of  $\Lambda$",
    "task.covariance.rotation_seed": r"seed of the eigenvectors of  $\Lambda$",
    "task.covariance_law.dimension": "dimension  $d$",
    "task.covariance_law.family": "law of the covariances",
    "task.label_noise": "standard deviation of the label noise",
    "task.weights": "law of the task's weights",
    "model.architecture": "architecture",
    "model.loops": "number of loops",
    "model.layers": "number of layers",
    "model.heads": "number of heads",
    "model.rank": "rank of keys and queries",
    "init.kind": "kind of start",
    "init.scale": r"scale of the start  $\sigma$",
    "init.rank": "rank of the start",
    "init.seed": "seed of the start",
    "loss.samples": "number of prompts drawn",
    "loss.seed": "seed of the prompts",
    "flow.rtol": "relative tolerance",
    "test.length": "length of the test prompts  $M$",
}


def name_of(field: str) -> str:
    """Return the axis label of a field; its dotted name if it has no label."""
    return _NAMES.get(field, field)
