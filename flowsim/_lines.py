"""What is said to people about their input, in one line; nothing heavy is imported."""

LONGEST = 1000  # characters


def one_line(text: str) -> str:
    """The text with characters escaped that a terminal would obey or not show: control, bidirectional, line breaks."""
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
