"""Statements in text-mode LaTeX, with formulas in ``$..$``: splitting, escaping and conversion to plain text."""

import functools
import re

# Characters that text-mode LaTeX reads as markup, and how to write them.
ESCAPES = {
    **{character: f"\\{character}" for character in "{}$&#%_"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
}
_CHARACTERS = {**{written: character for character, written in ESCAPES.items()}, "``": "“", "''": "”"}
_WRITTEN = re.compile("|".join(map(re.escape, sorted(_CHARACTERS, key=len, reverse=True))))
# Commands whose plain text is not their name.
SYMBOLS = {
    **{"ell": "l", "nabla": "grad", "infty": "infinity", "top": "T", "star": "*", "dots": ".."},
    **{"le": "<=", "preceq": "<=", "ge": ">=", "succeq": ">=", "succ": ">", "ne": "!=", "in": "in"},
    **{"to": "->", "gets": "<-", "sim": "~", "propto": "~", "pm": "+-", "otimes": "(x)", "mid": "|", "ni": "without"},
    **{"lfloor": "floor(", "rfloor": ")", ",": " ", ";": " "},
    **dict.fromkeys(("bigl", "bigr", "Bigl", "Bigr", "big", "left", "right", "not"), ""),
}
# Brackets that open and close a group. They become bars and angles at the end.
BRACKETS = {"lVert": "⟦", "rVert": "⟧", "lvert": "⟦", "rvert": "⟧", "langle": "⟨", "rangle": "⟩"}
ACCENTS = {"hat": "-hat", "bar": "-bar", "tilde": "~"}
FONTS = ("mathbb", "mathcal", "mathrm", "operatorname", "text")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.")


def text_and_formulas(latex: str) -> list[str]:
    """Split text-mode LaTeX at its dollar signs into a text, a formula, a text, and so on."""
    return re.split(r"(?<!\\)\$", latex)


def has_formulas(text: str) -> bool:
    """Whether a text has formulas in ``$..$``, which marks it as LaTeX."""
    parts = text_and_formulas(text)
    return len(parts) > 1 and len(parts) % 2 == 1


def escaped(text: str) -> str:
    """Plain text as LaTeX, with the characters escaped that LaTeX would read as markup."""
    return "".join(ESCAPES.get(character, character) for character in text)


def latex(text: str) -> str:
    """A text as LaTeX. It is returned unchanged if it has formulas in ``$..$``, and escaped otherwise."""
    return text if has_formulas(text) else escaped(text)


def unescaped(latex: str) -> str:
    """LaTeX without formulas as plain text, with the escapes of `escaped` and LaTeX's quotation marks undone."""
    return _WRITTEN.sub(lambda found: _CHARACTERS[found[0]], latex)


def number_in_latex(text: str) -> str:
    """A number written by `format`, as a LaTeX formula. The "-" of a missing number becomes a dash."""
    mantissa, _, exponent = text.replace("inf", r"\infty").partition("e")
    if mantissa == "-":
        return "--"
    return f"${mantissa} \\times 10^{{{int(exponent)}}}$" if exponent else f"${mantissa}$"


@functools.cache
def plain(text: str) -> str:
    r"""LaTeX as plain ASCII text. A text without formulas is returned unchanged.

    ``\frac{a}{b}`` becomes a/b, and ``\tfrac{a}{b}``, which is used for factors, (a/b). Norms and moduli become
    |x|, matrices [a b; c d].
    """
    if not has_formulas(text):
        return text
    parts = text_and_formulas(text)
    words = [re.sub(r"``|''", '"', part).replace(r"\%", "%") for part in parts[::2]]
    formulas = [_Formula(part).text() for part in parts[1::2]] + [""]
    found = "".join(part for pair in zip(words, formulas, strict=True) for part in pair)
    found = re.sub(r"([⟦⟨(])\s+|\s+([⟧⟩)])", r"\1\2", re.sub(r"\s+", " ", found))
    return found.translate(str.maketrans("⟦⟧⟨⟩", "||<>")).strip()


class _Formula:
    """Converts a LaTeX formula to plain text, token by token from the left. Unknown commands become their names."""

    def __init__(self, formula: str):
        self._tokens = _TOKEN.findall(formula)

    def text(self, end: str | None = None) -> str:
        """Remove the tokens up to and including ``end``, or all if it is None, and return their plain text."""
        parts: list[str] = []
        while self._tokens and self._tokens[0] != end:
            parts.append(self._atom())
        del self._tokens[:1]
        return "".join(parts)

    def _argument(self) -> str:
        """Remove the next group or token, without the spaces before it, and return its plain text."""
        while self._tokens and self._tokens[0].isspace():
            del self._tokens[0]
        return self._atom() if self._tokens else ""

    def _atom(self) -> str:
        token = self._tokens.pop(0)
        if token == "{":
            return self.text("}")
        if token in "^_":
            return _script(token, self._argument())
        return self._command(token[1:]) if token.startswith("\\") else token

    def _command(self, name: str) -> str:
        if name in ("frac", "tfrac"):
            text = f"{_grouped(self._argument(), False)}/{_grouped(self._argument(), True)}"
            return text if name == "frac" else f"({text})"
        if name == "sqrt":
            braced = self._tokens[:1] == ["{"]
            return f"sqrt({self._argument()})" if braced else f"sqrt {self._argument()}"
        if name == "binom":
            return f"binom({self._argument()}, {self._argument()})"
        if name == "partial":
            return "d" + self._argument()
        if name in ACCENTS:
            return self._argument() + ACCENTS[name]
        if name in FONTS:
            return self._argument()
        if name == "begin":
            return self._matrix()
        return BRACKETS.get(name) or SYMBOLS.get(name, name)

    def _matrix(self) -> str:
        self._argument()  # the environment's name
        rows = [[""]]
        while self._tokens and self._tokens[0] != r"\end":
            if self._tokens[0] == r"\\":
                rows.append([""])
            elif self._tokens[0] == "&":
                rows[-1].append("")
            else:
                rows[-1][-1] += self._atom()
                continue
            del self._tokens[0]
        del self._tokens[:1]
        self._argument()
        entries = [[entry.strip() for entry in row] for row in rows]
        between = ", " if any(" " in entry for row in entries for entry in row) else " "
        return f"[{'; '.join(between.join(row) for row in entries)}]"


def _script(sign: str, text: str) -> str:
    """A subscript or superscript as plain text, in braces unless it is one word, one number or in brackets.

    **Arguments:** sign: "^" or "_", which is left out before a star.
    """
    if text == "*":
        return "*"
    if text.startswith("*,"):
        return f"*{_script('_', text[2:])}"
    bare = r"-?(\d+|[A-Za-z]+)'?|\([^()]*\)" if sign == "^" else r"\w+'?|\([^()]*\)"
    return f"{sign}{text}" if re.fullmatch(bare, text) else f"{sign}{{{text}}}"


def _grouped(text: str, below: bool) -> str:
    """A numerator or denominator, in brackets if it is a sum, or a product below the slash.

    **Arguments:** below: whether the text is the denominator.
    """
    outside = re.sub(r"[\^_]\{[^{}]*\}", "", text)
    while (inner := re.sub(r"\([^()]*\)|⟦[^⟦⟧]*⟧|⟨[^⟨⟩]*⟩|\{[^{}]*\}", "•", outside)) != outside:
        outside = inner
    is_sum = re.search(r".[+-]", outside.strip())
    is_product = below and re.search(r"\S \S|\d[A-Za-z]", outside.strip())
    return f"({text})" if is_sum or is_product else text
