"""Three statements, handed to the search: one that breaks, its corrected form, and a bound with room to spare.

**Source:** xie2025 (27), which multiplies means over w-hat where the mean of the product is meant; zhang2023
(Trained Transformers Learn Linear Models In-Context), Theorem 4.2, second line of the display after it.

**What it shows:** started blind, the search finds that (27) fails in one dimension, with two examples and w* = 1, and
that its corrected form does not fail anywhere it looks; and that the bound on the risk is sharp as N grows, whatever
the dimension and the spectrum: to a factor of 1.004 at N = 1000, of 9 at N = 1.

**What would falsify it:** a counterexample of the corrected form, none of the printed one, or a factor below 1.
"""

import pathlib

import flowsim
from flowsim.report.plots import search

BROKEN, BOUND = "xie2025.eq-27", "zhang2023.theorem-4.2.noiseless-bound"


def main(quick: bool = False, out: pathlib.Path | None = None) -> tuple[list[flowsim.Refutation], flowsim.Sharpening]:
    """Search for a counterexample of both forms, and for the best constant of the bound; draw both."""
    flowsim.setup()
    print("Searching for counterexamples of two forms, then for a best constant ..", flush=True)
    folder = pathlib.Path(out or ".")
    refuted = []
    for claim in flowsim.find_claims(flowsim.ALL_CLAIMS, BROKEN):
        refuted.append(flowsim.refute(claim, problems=16 if quick else 64, progress=True))
        print(refuted[-1], "\n")
        if refuted[-1].counterexample is not None:
            search.draw_counterexample(refuted[-1].counterexample, folder / "counterexample.png")
    (claim,) = flowsim.find_claims(flowsim.ALL_CLAIMS, BOUND)
    found = flowsim.sharpen(claim, problems=150 if quick else 2000, progress=True)
    print(found)
    search.draw_growth(found, folder / "sharpening.png")
    print(f"figures: {folder.absolute()}")
    return refuted, found


if __name__ == "__main__":
    main()
