"""LaTeX as plain text, by the conventions of the claims' statements, so that the two can be held against each other."""

import re

GREEK = (
    *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi", "pi"),
    *("sigma", "Gamma", "Delta", "Theta", "Lambda", "Sigma"),
)
SYMBOLS = {
    **{name: name for name in (*GREEK, "sum", "prod", "min", "max", "inf", "exp", "ln")},
    **{"ell": "l", "nabla": "grad", "infty": "infinity", "top": "T", "star": "*", "dots": ".."},
    **{"le": "<=", "preceq": "<=", "ge": ">=", "succeq": ">=", "succ": ">", "ne": "!=", "in": " in "},
    **{"to": "->", "gets": "<-", "sim": "~", "propto": "~", "pm": "+-", "otimes": "(x)", "mid": "|", "ni": "without"},
    **{"lfloor": "floor(", "rfloor": ")", ",": " ", ";": " ", "%": "%", "_": "_"},
    **dict.fromkeys(("bigl", "bigr", "Bigl", "Bigr", "big", "not"), ""),
}
# Bars and angles that open and close, told apart until the end.
BRACKETS = {"lVert": "⟦", "rVert": "⟧", "lvert": "⟦", "rvert": "⟧", "langle": "⟨", "rangle": "⟩"}
ACCENTS = {"hat": "hat", "bar": "bar", "tilde": "~"}
FONTS = ("mathbb", "mathcal", "mathrm", "operatorname", "text")
TOKEN = re.compile(r"\\[A-Za-z]+|\\.|\d+(?:\.\d+)?|\s+|.")


def plain(latex: str) -> str:
    """LaTeX in ordinary text as a claim states it: a fraction is a/b and, as a factor (``\\tfrac``), (a/b); a norm and
    a modulus are |x|; a matrix is [a b; c d].
    """
    parts = latex.split("$")
    assert len(parts) % 2 == 1, f"a $ too many or too few: {latex}"
    words = [re.sub(r"``|''", '"', text).replace(r"\%", "%") for text in parts[::2]]
    formulas = [_Formula(text).all() for text in parts[1::2]] + [""]
    text = "".join(part for pair in zip(words, formulas, strict=True) for part in pair)
    return text.translate(str.maketrans("⟦⟧⟨⟩", "||<>"))


def normalised(text: str) -> str:
    """Plain text with its scripts in braces, a matrix without commas, and spaces between words alone."""
    text = re.sub(r"\b([uU])(\d\d)\b", r"\1_\2", text.replace("-hat", "hat").replace("= inf ", "= infinity "))
    text = re.sub(r"(dU|du)(\d\d)", r"\1_\2", text)
    text = re.sub(r"\[[^\[\]]*;[^\[\]]*\]", lambda found: found[0].replace(",", " "), text)
    text = re.sub(r"(?<!\{q)([\^_])(-?(?:q_(?:guess|bias)|[A-Za-z0-9]+)'?|\([^()]*\))", r"\1{\2}", text)
    return re.sub(r"(?<!\w)\s+|\s+(?!\w)", "", re.sub(r"\s+", " ", text)).strip()


class _Formula:
    """A formula that is read from left to right."""

    def __init__(self, text: str):
        self.tokens = TOKEN.findall(text)

    def all(self) -> str:
        text = self.until(None)
        assert not self.tokens
        return text

    def until(self, end: str | None) -> str:
        parts = []
        while self.tokens and self.tokens[0] != end:
            parts.append(self.atom())
        if end is not None:
            self.tokens.pop(0)
        return "".join(parts)

    def argument(self) -> str:
        """The next group or token."""
        while self.tokens[0].isspace():
            self.tokens.pop(0)
        return self.atom()

    def atom(self) -> str:
        token = self.tokens.pop(0)
        if token == "{":
            return self.until("}")
        if token in "^_":
            return self.script(token)
        return self.command(token[1:]) if token.startswith("\\") else token

    def script(self, sign: str) -> str:
        text = self.argument()
        if text == "*":
            return "*"
        return f"*_{{{text[2:]}}}" if text.startswith("*,") else f"{sign}{{{text}}}"

    def command(self, name: str) -> str:
        if name in ("frac", "tfrac"):
            above, below = self.argument(), self.argument()
            text = f"{_grouped(above, False)}/{_grouped(below, True)}"
            return text if name == "frac" else f"({text})"
        if name == "sqrt":
            braced = self.tokens[0] == "{"
            text = self.argument()
            return f"sqrt({text})" if braced else f"sqrt {text}"
        if name == "binom":
            return f"binom({self.argument()}, {self.argument()})"
        if name == "partial":
            return "d" + self.argument()
        if name in ACCENTS:
            return self.argument() + ACCENTS[name]
        if name in FONTS:
            return self.argument()
        if name == "begin":
            return self.matrix()
        return BRACKETS.get(name) or SYMBOLS[name]

    def matrix(self) -> str:
        assert self.argument() == "bmatrix"
        rows = [[""]]
        while self.tokens[0] != r"\end":
            if self.tokens[0] == r"\\":
                self.tokens.pop(0)
                rows.append([""])
            elif self.tokens[0] == "&":
                self.tokens.pop(0)
                rows[-1].append("")
            else:
                rows[-1][-1] += self.atom()
        self.tokens.pop(0)
        assert self.argument() == "bmatrix"
        return f"[{'; '.join(' '.join(map(str.strip, row)) for row in rows)}]"


def _grouped(text: str, below: bool) -> str:
    """A numerator or denominator, in brackets where a slash asks for them."""
    outside = re.sub(r"[\^_]\{[^{}]*\}", "", text)
    while (inner := re.sub(r"\([^()]*\)|⟦[^⟦⟧]*⟧|⟨[^⟨⟩]*⟩|\{[^{}]*\}", "•", outside)) != outside:
        outside = inner
    is_sum = re.search(r".[+-]", outside.strip())
    is_product = below and re.search(r"\S \S|\d[A-Za-z]", outside.strip())
    return f"({text})" if is_sum or is_product else text
