"""An exact calculator: the expression is parsed and folded node by node; nothing in it is ever run."""

from __future__ import annotations

import ast
import math
import operator
from fractions import Fraction

MOST_BITS = 20_000
"""Numbers longer than this (some 6,000 digits) are refused: a power of a power must not eat the machine."""
MOST_DEPTH = 100
DIGITS = 50

Number = int | Fraction | float

SIGNS = str.maketrans("（）＋－×＊÷／．，０１２３４５６７８９−·", "()+-**//.,0123456789-*")
CONSTANTS = {"pi": math.pi, "e": math.e}
ROUNDING = {
    "sqrt": math.sqrt, "sin": math.sin, "cos": math.cos, "tan": math.tan, "exp": math.exp, "ln": math.log,
    "log10": math.log10, "log2": math.log2,
}  # fmt: skip
EXACT = {"abs": abs, "floor": math.floor, "ceil": math.ceil}
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod}


class BadInput(ValueError):
    """Input that no further try can mend."""

    retryable = False


def run(expression: str) -> dict[str, object]:
    """The value of `expression`, exactly where it is rational."""
    text = expression.translate(SIGNS).strip().removesuffix("=").strip()
    try:
        value = fold(ast.parse(text, mode="eval").body, text, 0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{expression!r} is no arithmetic expression") from None
    except ZeroDivisionError:
        raise BadInput(f"{expression!r} divides by zero") from None
    except OverflowError:
        raise BadInput(f"{expression!r} is too large") from None
    return shown(value)


def fold(node: ast.expr, text: str, depth: int) -> Number:
    if depth > MOST_DEPTH:
        raise BadInput("the expression is nested too deeply")
    if isinstance(node, ast.Constant):
        return number(node, text)
    if isinstance(node, ast.Name) and node.id in CONSTANTS:
        return CONSTANTS[node.id]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = fold(node.operand, text, depth + 1)
        return value if isinstance(node.op, ast.UAdd) else -value
    if isinstance(node, ast.BinOp):
        return bounded(binary(node.op, fold(node.left, text, depth + 1), fold(node.right, text, depth + 1)))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        return bounded(function(node.func.id, [fold(argument, text, depth + 1) for argument in node.args]))
    raise BadInput(f"{ast.get_source_segment(text, node)!r} is not understood")


def number(node: ast.Constant, text: str) -> Number:
    """A number as it is written: 0.1 is a tenth."""
    written = (ast.get_source_segment(text, node) or "").replace("_", "")
    if isinstance(node.value, bool) or not isinstance(node.value, int | float):
        raise BadInput(f"{written!r} is no number")
    if isinstance(node.value, float) and not 1e-300 < abs(node.value) < 1e300 and node.value != 0:
        raise BadInput(f"{written!r} is too large or too small")
    return bounded(node.value if isinstance(node.value, int) else Fraction(written))


def binary(op: ast.operator, left: Number, right: Number) -> Number:
    if isinstance(op, ast.Pow):
        return power(left, right)
    if isinstance(op, ast.Div | ast.FloorDiv):
        rounded = isinstance(left, float) or isinstance(right, float)
        value = left / right if rounded else Fraction(left) / Fraction(right)
        return value if isinstance(op, ast.Div) else math.floor(value)
    if type(op) in OPERATORS:
        return OPERATORS[type(op)](left, right)
    raise BadInput("only + - * / // % ** are understood")


def power(base: Number, exponent: Number) -> Number:
    whole = isinstance(exponent, int) or (isinstance(exponent, Fraction) and exponent.denominator == 1)
    if whole and not isinstance(base, float):
        bits = max(Fraction(base).numerator.bit_length(), Fraction(base).denominator.bit_length())
        if bits > 1 and bits * abs(int(exponent)) > MOST_BITS:
            raise BadInput("the result of ** is too long")
        return Fraction(base) ** int(exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise BadInput("a root of a negative number is no real number")
    return result


def function(name: str, values: list[Number]) -> Number:
    if name in ("min", "max") and values:
        return min(values) if name == "min" else max(values)
    if name == "round" and len(values) in (1, 2):
        places = int(values[1]) if len(values) == 2 else 0
        if abs(places) > 300:
            raise BadInput("round to at most 300 places")
        return round(Fraction(values[0]), places)
    if name == "log" and len(values) in (1, 2):
        return math.log(*values)
    if name in EXACT and len(values) == 1:
        return EXACT[name](values[0])
    if name in ROUNDING and len(values) == 1:
        return ROUNDING[name](values[0])
    known = ", ".join(sorted([*EXACT, *ROUNDING, "min", "max", "round", "log"]))
    raise BadInput(f"{name!r} with {len(values)} values is not understood; known: {known}")


def bounded(value: Number) -> Number:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadInput("the result is too large")
        return value
    exact = Fraction(value)
    if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > MOST_BITS:
        raise BadInput("the result is too long")
    return value


def shown(value: Number) -> dict[str, object]:
    if isinstance(value, float):
        return {"result": f"{value:.15g}", "exact": False}
    exact = Fraction(value)
    if exact.denominator == 1:
        return {"result": digits(exact.numerator), "exact": True}
    text, whole = decimal(exact)
    fraction = f"{digits(exact.numerator)}/{digits(exact.denominator)}"
    return {"result": text, "exact": True} if whole else {"result": text, "exact": False, "fraction": fraction}


def decimal(value: Fraction) -> tuple[str, bool]:
    """At most `DIGITS` places after the point, and whether that is all."""
    scaled = value * 10**DIGITS
    places = round(scaled)
    sign = "-" if places < 0 else ""
    text = digits(abs(places)).rjust(DIGITS + 1, "0")
    return f"{sign}{text[:-DIGITS]}.{text[-DIGITS:]}".rstrip("0").rstrip("."), scaled.denominator == 1


def digits(value: int) -> str:
    """Decimal digits in pieces: Python itself refuses to convert more than 4,300 at once."""
    if abs(value) < 10**4000:
        return str(value)
    sign, rest, parts = ("-" if value < 0 else ""), abs(value), []
    while rest:
        rest, part = divmod(rest, 10**4000)
        parts.append(str(part).rjust(4000, "0"))
    return sign + "".join(reversed(parts)).lstrip("0")
