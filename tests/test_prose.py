"""Docstrings, comments and messages of these rooms are plain English: none has a phrase that makes a reader stop."""

import ast
import io
import pathlib
import re
import tokenize
from collections.abc import Iterator

import pytest

import flowsim

PACKAGE = pathlib.Path(flowsim.__file__).parent
# Add a room when its prose is rewritten.
ROOMS = (
    "_core",
    "tasks",
    "models",
    "moments",
    "losses",
    "initialization",
    "problem",
    "claims",
    "papers/ahn2023",
    "papers/gatmiry2024",
    "papers/xie2025",
    "papers/zhang2023",
    "papers/zhang2025",
    "flow",
    "experiments",
    "report",
    "cli",
)
FILES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))

# Each pattern with a sentence that it must find.
BANNED = {
    r"(?<!there )\b(?:is|are|was|were) (?-i:none)\b": "The margin, NaN where it is none.",
    r"(?<!there )\b(?:is|are|was|were) no (?!longer|more|less|faster|greater|larger|smaller)": "What is no file.",
    r"\bwhere there (?:is|are) (?:one|none|some)\b": "The exact loss, where there is one.",
    r"\bof (?:its|their|his|one's|somebody's|(?:the|a) users?'s?) own\b": "Layers with weights of their own.",
    r"\bsomebody(?:'s| else's)\b": "It has slopes of somebody's.",
    r"\balike\b": "The cells of a sweep are alike.",
    r"\bbeside\b": "The law of w, beside the length.",
    r"\b(?:un)?told\b": "One law for all, unless told.",
    r"\b(?:beneath|dealing)\b": "The folder beneath it.",
    r"\bgo(?:es)? on\b": "The flow goes on from there.",
    r"\blooked at\b": "All entries that are looked at.",
    r"\b(?:said of|(?:speaks?|spoken) of)\b": "What is said of the loss.",
    r"\bthat of (?:those|these|what)\b": "The digest is that of those in the file.",
    r"\b(?:is|be|are) done without\b": "A damaged file is done without.",
    r"\bthe (?:latter|former) (?:of|is|where)\b": "Two errors, the latter of a path.",
    r"\b(?:has|have) not (?:at|in|where|on)\b": "Precision that floats have not at large n.",
    r"\bneeds? but\b": "The others need but sums.",
    r"\b(?:in|of|by|at|on|with|within) so many\b": "Computed in so many digits.",
    r"\bat least so (?:large|many|much)\b": "A whole number that is at least so large.",
    r"\bin (?:the making|one go)\b": "A copy in the making.",
    r"\bas (?:it|they) stands?\b": "The guess of a model, as it stands.",
    r"\baside\b": "The best forms, the query's token aside.",
    r"\bfor ever\b": "It stays there for ever.",
    r"\bunless said\b": "They are equally likely unless said.",
    r"\bwhat (?:is|are) missed\b": "The residual is what is missed.",
    r"\bhowever that comes\b": "Until the end, however that comes.",
    r"\b(?:people|a reader) (?:is|are) to\b": "What a reader is to see.",
    r"\btime first\b": "Models that have time first.",
    r"\b(?:time|lanes|rows?) leading\b": "Flows with lanes leading.",
    r"\bwhat (?:is|was|are|becomes) (?:asked|kept|known|seen|found|recorded|left|made) of\b": "What is found of it.",
    r"\bas (?:JSON|TOML|X|a (?:run|file|verdict)|it|they) ha(?:s|ve) (?:it|them)\b": "A value as TOML has it.",
    r"\b(?:can|cannot|can't) be had\b": "Where balls cannot be had.",
    r"\bway (?:that is |it is )?still to go\b": "The way still to go.",
    r"\brest of the way\b": "A bound on the rest of the way.",
    r"\b(?:is|are) off by\b": "How much it is off by.",
    r"\bat first sight\b": "Those that fail at first sight.",
    r"\b(?:entry|number|row|matrix|key|thread|scalar) an? (?:time|point|head|layer|dimension|core)\b": "A row a head.",
    r"\b(?:an )?earlier goe?s?\b": "Units of an earlier go.",
    r"\bfor good\b": "It ends for good.",
    r"\bsays? of\b": "What a paper says of the start.",
    r"\bbut (?:for )?rounding\b": "The gradient is but rounding.",
    r"\b(?:whoever|anybody|nobody)\b": "As near as anybody likes.",
    r"\bcarr(?:y|ies|ied) along\b": "The text that a certificate carries along.",
    r"\ball the same(?=[.:;,])": "Its conclusion holds all the same.",
    r"\blet the \w+ go\b": "Let the parameter go further.",
    r"\bof which nothing\b": "A time of which nothing is known.",
}
PLAIN = """There is none. If there is no file, the name is no longer known. None if none is known, and the start is
None. It has its own key. The `beside` of a matrix, and ``goes on`` as it is written. There were no more than four."""


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Every docstring, comment and message of a module with its line, in one line and without code in backticks.

    Comments on consecutive lines are one text, and so are the parts of an f-string.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, _in_one_line("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, _in_one_line(node.value)
    first, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if line == last + 1:
                words = f"{words} {text}"
            else:
                yield first, _in_one_line(words)
                first, words = line, text
            # What follows the code of a line is not continued.
            last = line if token.line.lstrip().startswith("#") else -1
    yield first, _in_one_line(words)


def _in_one_line(text: str) -> str:
    return " ".join(re.sub(r"``.*?``|`[^`]*`", "X", text, flags=re.DOTALL).split())


def found(source: str) -> list[str]:
    """Each banned phrase in a module, with its line and the words around it."""
    return [
        f"line {line}: {text[max(match.start() - 40, 0) : match.end() + 40]}"
        for line, text in prose(source)
        for pattern in BANNED
        for match in re.finditer(pattern, text, re.IGNORECASE)
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_has_no_phrase_that_stops_a_reader(path):
    assert not found(path.read_text())


@pytest.mark.parametrize("sentence", BANNED.values())
def test_a_planted_phrase_is_found_wherever_it_stands(sentence):
    half = sentence.replace(" ", "\n    ")
    assert found(f'def f():\n    """{half}"""'), "in a docstring that is broken into lines"
    assert found(f"x = 1  # {sentence}"), "in a comment"
    assert found("\n".join(f"# {word}" for word in sentence.split())), "in a comment of several lines"
    assert found(f'raise ValueError(f"{{x}}: {sentence}")'), "in a message"


def test_ordinary_english_and_code_in_backticks_are_left_alone():
    assert not found(f'"""{PLAIN}"""')


def test_every_room_is_looked_through():
    assert all(any(path.is_relative_to(PACKAGE / room) for path in FILES) for room in ROOMS)
