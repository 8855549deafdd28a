"""The entry point of the command line: it parses arguments, shows warnings and returns the exit status."""

import functools
import os
import signal
import sys
import warnings
from collections.abc import Sequence

import tyro

from flowsim._core import VERSION
from flowsim._core.text import nearest
from flowsim.cli import prepare
from flowsim.cli.commands import COMMANDS
from flowsim.cli.prepare import FINISHED, UNFINISHED, explained, guarded, interrupted, stop


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    0: finished; 1: ``--strict`` is given and a claim is violated, or `verify` finds that a certificate proves
    nothing; 2: bad input; 3: not finished; 130: interrupted.

    **Arguments:** arguments: the words of the command line, by default those of this process.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        print(f"flowsim {VERSION}")
        return FINISHED
    commands = {command.__name__: guarded(command) for command in COMMANDS}
    if given and given[0] not in commands and not given[0].startswith("-"):
        near = nearest(given[0], commands)
        return stop(
            prepare.BAD_INPUT, f'the command must be one of {", ".join(commands)}, but it is "{given[0]}"{near}'
        )
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = functools.partial(prepare.warned, warnings.showwarning)
            return tyro.extras.subcommand_cli_from_dict(
                commands,
                args=arguments,
                prog="flowsim",
                description="Integrate gradient flows of population losses, and judge theorems about them.",
                config=(tyro.conf.FlagCreatePairsOff,),
            )
    except BrokenPipeError:
        # The reader (``head``, a pager) has ended: print nothing more, not even when Python flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return stop(UNFINISHED, f"stopped: {error}; earlier files are complete, and a run continues with --resume")
    except Exception as error:
        return stop(*explained(error))
    finally:
        signal.signal(signal.SIGINT, before)
