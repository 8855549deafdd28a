"""The commands with their options. Heavy modules are imported after parsing."""

from flowsim.cli.commands.claims import audit, certify, check, cite, claims, verify
from flowsim.cli.commands.problems import explore, init, run, sweep
from flowsim.cli.commands.searches import ablate, referee, refute, sharpen

COMMANDS = run, init, claims, check, certify, verify, audit, sweep, explore, refute, sharpen, ablate, referee, cite
