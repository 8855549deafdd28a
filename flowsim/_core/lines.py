"""Error messages in one line. This module imports nothing heavy."""

LONGEST = 1000  # characters
TRACEBACK = "FLOWSIM_TRACEBACK"  # with the value 1, unexpected errors are raised with their traceback


def one_line(text: str) -> str:
    """The text with control characters, bidirectional marks and line breaks escaped, cut to `LONGEST` characters."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"


def in_short(error: BaseException) -> str:
    """The type of an error and the first line of its message."""
    lines = said_by(error).splitlines()
    return one_line(f"{type(error).__name__}: {lines[0]:.300}" if lines else type(error).__name__)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error of Python, NumPy or XLA says that memory ran out."""
    said = said_by(error)
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in said or "ut of memory" in said


def said_by(error: BaseException) -> str:
    """The message of an error; empty if its ``__str__`` fails, as that of a user's class may."""
    try:
        return str(error)
    except BaseException:
        return ""


def listed(text: str) -> list[str]:
    """A text split at its commas, except those within brackets, braces and quotation marks."""
    parts, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in "[{") - (character in "]}")
        if character == "," and not (depth or quote):
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]
