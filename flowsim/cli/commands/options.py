"""The options that commands share, and the import of a command's function."""

import importlib
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any, Literal

import tyro

from flowsim.cli.prepare import prepare_jax


def entry_of(module: str, name: str) -> Callable[..., int]:
    """Prepare JAX, and return the function of `flowsim.cli` that does the work of a command.

    The import takes a second or more, for which a terminal shows a progress bar.

    **Arguments:** module, name: ``flowsim.cli.{module}.{name}``.
    """
    from flowsim._core.progress import progress_bar

    with progress_bar("starting", 1, shown=sys.stderr.isatty()):
        prepare_jax()
        return vars(importlib.import_module(f"flowsim.cli.{module}"))[name]


def if_given(metavar: str, help: str | None = None) -> Any:
    """Describe an option that is left out by default. Its help does not mention the default."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


ProblemFile = Annotated[tyro.conf.Positional[pathlib.Path], tyro.conf.arg(metavar="PROBLEM.toml|FILE.py:NAME")]
OtherProblem = Annotated[tyro.conf.Positional[pathlib.Path | None], if_given("[PROBLEM.toml|FILE.py:NAME]")]
Texts = tuple[tuple[str, ...], ...]
Overrides = Annotated[
    Texts,
    tyro.conf.UseAppendAction,
    tyro.conf.arg(name="set", metavar="FIELD=VALUE", help="override fields of the problem, such as init.scale=0.3"),
]
Axes = Annotated[Texts, tyro.conf.UseAppendAction, tyro.conf.arg(name="over", metavar="FIELD=VALUES")]
Explored = Annotated[Texts, tyro.conf.UseAppendAction, tyro.conf.arg(name="explore", metavar="FIELD=VALUES")]
ClaimIds = Annotated[tyro.conf.Positional[tuple[str, ...]], if_given("[CLAIM_ID ...]", "without one, only flowsim")]
ClaimId = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="CLAIM_ID")]
Folder = Annotated[pathlib.Path, tyro.conf.arg(metavar="DIR")]
Pattern = Annotated[str | None, if_given("PATTERN")]
Kept = Annotated[pathlib.Path | None, if_given("DIR")]
Jobs = Annotated[int, tyro.conf.arg(metavar="N", help="number of processes on this machine that share the work")]
Scheduler = Annotated[str | None, if_given("ADDRESS", "a dask scheduler, whose workers share the work")]
Shard = Annotated[str | None, if_given("I/N", "do only the I-th of N parts; all parts share DIR")]
Budget = Annotated[str, tyro.conf.arg(metavar="TIME", help="the time limit, such as 90s or 10m")]
Problems = Annotated[int | None, if_given("N", "instead of a time, the number of problems; the last batch is finished")]
Form = Annotated[Literal["printed", "corrected"], tyro.conf.arg(help="form of the claim")]
Seed = Annotated[int, tyro.conf.arg(help="seed of the random draws")]
Devices = Annotated[str | None, if_given("N|all")]
