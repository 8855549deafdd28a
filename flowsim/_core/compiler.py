"""Compiler settings: faster compilation, and a cache on the disk that later processes reuse."""

import atexit
import gc
import importlib.metadata
import os
import pathlib
import tempfile
import time

_EMITTERS = "xla_cpu_use_fusion_emitters"
_COLLECTED_AFTER = (50_000, 20, 100)  # Python's thresholds, 700, 10 and 10 by default
_MAPS, _MOST_MAPS = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")
_COUNTED_EVERY = 1.0  # seconds
_counted = 0.0


def prepare_compiler() -> None:
    """Speed up tracing and compiling, and cache every compiled program below XDG_CACHE_HOME, or ~/.cache.

    Call it before the first computation. If the folder is missing or not writable, nothing is cached. The cache hides
    no error: flowsim raises its errors while a program is traced, and tracing is not cached.
    """
    # Tracing makes many small objects that stay alive. With Python's default thresholds, the search for cycles among
    # them takes a tenth of the time to a first verdict.
    gc.set_threshold(*_COLLECTED_AFTER)
    # When Python ends, it searches for cycles once more, which takes up to a second and frees nothing that matters.
    atexit.register(gc.freeze)
    # diffrax checks its times by a callback unless errors become NaN, and a program with a callback is never cached.
    os.environ.setdefault("EQX_ON_ERROR", "nan")
    flags = os.environ.get("XLA_FLAGS", "").strip()
    names_a_file = bool(flags) and not flags.startswith("-")
    # XLA's newer loop emitters take a third longer to compile, and their programs are not faster. XLA ends a process
    # that sets an unknown option, so the option is set only for versions that are known to have it.
    known = importlib.metadata.version("jaxlib").startswith("0.10.")
    if known and _EMITTERS not in flags and not names_a_file:
        os.environ["XLA_FLAGS"] = f"{flags} --{_EMITTERS}=false".strip()
    import jax

    # jaxlib 0.10.1 mistakes two compiler settings that it makes itself for features of another machine, and logs a
    # long warning for every program that it loads from the cache. JAX sets this variable to 1 when it is imported, and
    # its C++ code has read it by then; JAX's own option reaches it later, too. Taken back, it restores Python's logs.
    if os.environ["TF_CPP_MIN_LOG_LEVEL"] == "1" and jax.config.values["jax_logging_level"] == "NOTSET":
        jax.config.update("jax_logging_level", "CRITICAL")
        jax.config.update("jax_logging_level", "NOTSET")
    try:
        folder = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "flowsim" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, RuntimeError):  # a RuntimeError comes from a user without a home folder
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


def setup() -> str:
    """Switch float64 on, speed up compiling and cache compiled programs on the disk, as the command line does.

    Call it before the first computation. If it is called before other modules of flowsim are imported, more
    programs are cached. The compiler options change the last digits of results. Python's garbage collector also
    runs less often in this process.

    **Returns:** a sentence that says what was set.
    """
    prepare_compiler()
    import jax

    jax.config.update("jax_enable_x64", True)
    folder = jax.config.values["jax_compilation_cache_dir"]
    return f"float64 is on; compiled programs are {f'kept in {folder}' if folder else 'not kept on the disk'}"


def forget_programs() -> None:
    """Drop all compiled programs when the process has more than half of the memory maps that Linux allows.

    With more maps than allowed, 65,530 by default, loading a program ends the process with a segmentation fault. A
    program holds about ten maps with jaxlib 0.10 and fifty with jaxlib 0.12. Other systems set no such limit. The
    maps are counted at most once a second.
    """
    global _counted
    if time.monotonic() < _counted + _COUNTED_EVERY:
        return
    _counted = time.monotonic()
    try:
        maps, most = _MAPS.read_bytes().count(b"\n"), int(_MOST_MAPS.read_text())
    except OSError:
        return
    if maps > most / 2:
        import jax

        jax.clear_caches()
