"""The commands with their options. Modules that are slow to import are imported after the options are parsed."""

from flowsim.cli.commands.claims import audit, certify, check, cite, claims, verify
from flowsim.cli.commands.problems import explore, init, run, sweep
from flowsim.cli.commands.searches import ablate, referee, refute, sharpen

COMMANDS = run, init, claims, check, certify, verify, audit, sweep, explore, refute, sharpen, ablate, referee, cite
