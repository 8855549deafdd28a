"""Run the scenarios and keep a small picture of each: ``python docs/gallery.py [--limit SECONDS] [NAME ..]``.

Each scenario runs as a reader would run it, in a process and a folder of its own. Its picture goes to
docs/gallery/NAME.png, at most 800 pixels wide and in 64 colours. Its seconds of one core go to
docs/gallery/seconds.json; they hardly depend on what else the machine does. A scenario that takes more than the limit
or fails keeps its former picture; the exit status is then 1.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile

from PIL import Image

ROOT = pathlib.Path(__file__).resolve().parents[1]
PICTURES = pathlib.Path(__file__).resolve().parent / "gallery"
OTHER_NAMES = {"zhang2023_fixed_covariance": "excess", "search_for_counterexamples": "sharpening"}
WIDTH, COLOURS = 800, 64


def run(name: str, limit: int) -> float:
    """Run a scenario, keep its picture; returns the seconds of one core that it took."""
    with tempfile.TemporaryDirectory() as folder:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, ROOT / "scenarios" / f"{name}.py"],
            cwd=folder,
            check=True,
            stdout=sys.stderr,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit)),
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (picture,) = pathlib.Path(folder).rglob(f"{OTHER_NAMES.get(name, name)}.png")
        shrink(picture, PICTURES / f"{name}.png")
    return seconds


def shrink(source: pathlib.Path, target: pathlib.Path) -> None:
    """A picture of at most WIDTH pixels and COLOURS colours."""
    with Image.open(source) as image:
        image = image.convert("RGB")
        image.thumbnail((WIDTH, WIDTH), Image.Resampling.LANCZOS)
        image.quantize(COLOURS, dither=Image.Dither.NONE).save(target, optimize=True)


def main() -> int:
    """Run the scenarios that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=sorted(path.stem for path in (ROOT / "scenarios").glob("*.py")))
    parser.add_argument("--limit", type=int, default=600, help="seconds of one core that a scenario may take")
    arguments = parser.parse_args()
    file, failed = PICTURES / "seconds.json", []
    for name in arguments.names:
        try:
            seconds = run(name, arguments.limit)
        except (subprocess.SubprocessError, ValueError) as error:
            print(f"{name}: {str(error).splitlines()[0]}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        print(f"{name}: {seconds:.0f} s", file=sys.stderr, flush=True)
        known = json.loads(file.read_text()) if file.exists() else {}
        file.write_text(json.dumps(dict(sorted((known | {name: round(seconds)}).items())), indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
