"""Choose the devices that a command uses, in this process and in processes on other hosts."""

import contextlib
import dataclasses
import math
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from flowsim._core.checks import refuse

AUTOMATIC = "auto"


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The options for a run that several processes share, usually on several hosts.

    **Fields:**

    - coordinator: HOST:PORT at which process 0 listens; "auto" to take all options from Slurm or Open MPI; None for
      a single process.
    - processes: the number of processes.
    - process: the number of this process, from 0.
    - join_timeout: how many seconds the processes wait for each other to start.
    """

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    join_timeout: float = 120.0

    def check(self) -> None:
        """Check that the options are in range and fit together.

        **Raises:** `ProblemError` naming the option that is wrong.
        """
        given = {"--processes": self.processes, "--process": self.process}
        if self.coordinator in (None, AUTOMATIC):
            for name, value in given.items():
                if value is not None:
                    refuse(name, "given with --coordinator HOST:PORT alone", f"it is {value}")
        else:
            if not re.fullmatch(r".+:\d{1,5}", self.coordinator):
                refuse("--coordinator", 'HOST:PORT, or "auto"', f'it is "{self.coordinator}"')
            for name, value in given.items():
                if value is None:
                    refuse(name, f"given with --coordinator {self.coordinator}", "it is missing")
            assert self.processes is not None and self.process is not None, "both are given"
            if self.processes < 1:
                refuse("--processes", "at least 1", f"it is {self.processes}")
            if not 0 <= self.process < self.processes:
                refuse("--process", f"from 0 to {self.processes - 1}", f"it is {self.process}")
        if not 0 < self.join_timeout < math.inf:
            refuse("--join-timeout", "a positive number of seconds", f"it is {self.join_timeout:g}")

    def join(self) -> None:
        """Connect this process with the others. Call this before JAX starts its devices. Without a coordinator, do
        nothing.

        **Raises:** `ProblemError` if Slurm or Open MPI provide no settings; `ConnectionError` if joining fails.
        """
        if self.coordinator is None:
            return
        automatic = self.coordinator == AUTOMATIC
        with self._limit():
            try:
                jax.distributed.initialize(
                    None if automatic else self.coordinator,
                    self.processes,
                    self.process,
                    # With the settings of Slurm each process would take one device of its host.
                    cluster_detection_method=None if automatic else "deactivate",
                    # Then JAX aborts the process with a stack trace, so that the limit here must come first.
                    initialization_timeout=int(self.join_timeout) + 60,
                    # Otherwise JAX listens on every interface.
                    coordinator_bind_address=None if automatic or self.process != 0 else self.coordinator,
                )
            except ValueError as error:
                refuse(
                    "--coordinator", "HOST:PORT outside of Slurm and Open MPI", f'it is "auto", and JAX finds: {error}'
                )
            except RuntimeError as error:
                line = str(error).splitlines()[0]
                raise ConnectionError(f"the processes could not join at {self.coordinator}: {line}") from None

    @contextlib.contextmanager
    def _limit(self) -> Iterator[None]:
        """End this process with status 3 if the code in the context takes longer than ``join_timeout`` seconds."""
        timer = threading.Timer(self.join_timeout, self._give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _give_up(self) -> None:
        others = "the others" if self.processes is None else f"all {self.processes} processes"
        where = "" if self.coordinator == AUTOMATIC else f" at {self.coordinator}"
        line = f"stopped: {others} did not join{where} within {self.join_timeout:g} seconds (--join-timeout)"
        os.write(sys.stderr.fileno(), f"flowsim: {line}\n".encode())
        os._exit(3)


def mesh_over(devices: str | None, hosts: Hosts) -> Mesh | None:
    """Join the other processes, and return a mesh with one axis, "samples", over the chosen devices of all
    processes. None if there is only one device.

    **Arguments:** devices: the number of devices in each process, "all", or None for one; hosts: the processes.

    **Raises:** `ProblemError` naming the option; `ConnectionError` if the other processes cannot be joined.
    """
    hosts.check()
    count = _count(devices)
    if devices is not None and count is not None:
        # Devices of a running JAX cannot be changed.
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    hosts.join()
    found: dict[int, list[Any]] = {}
    for device in jax.devices():
        found.setdefault(device.process_index, []).append(device)
    fewest = min(len(own) for own in found.values())
    if count is not None and count > fewest:
        refuse("--devices", f"at most {fewest}, which JAX sees of each process", f"it is {count}")
    chosen = [device for own in found.values() for device in own[:count]]
    if len(chosen) == 1:
        return None
    return Mesh(np.asarray(chosen), ("samples",), axis_types=(AxisType.Auto,))


def _count(devices: str | None) -> int | None:
    """Parse --devices: return the number of devices in each process, 1 without the option, or None for all."""
    if devices == "all":
        return None
    if devices is None:
        return 1
    if not re.fullmatch(r"[1-9]\d{0,5}", devices):
        refuse("--devices", 'a whole number of at least 1, or "all"', f'it is "{devices}"')
    return int(devices)
