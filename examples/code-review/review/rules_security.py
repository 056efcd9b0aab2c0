"""Context rules for the security findings (S…). Each returns a verdict and its reason, or None: nothing to add.

Guarantees: pure; looks only at the file that the finding is in.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from review.source import Source
from review.verdict import Answer, Rule

_SECRET = re.compile(
    r"token(?!iz)|secret|passw|passphrase|nonce|(?<![a-z])salt|(?<![a-z])otp(?![a-z])|csrf|credential|api_?key|"
    r"session_?id|private_?key|signature|auth_?code"
)
_SPREAD = re.compile(r"jitter|back_?off|retry|delay|sleep|wait|interval")
_IDENTITY = re.compile(r"\bsha1?\b|digest|e_?tag|check_?sum|finger_?print|cache|content_?hash|version|\bid\b|dedup")
_FIXED_BY = {
    "ocsp": "RFC 6960 identifies a key by its SHA-1", "websocket": "RFC 6455 computes its handshake with SHA-1",
    "totp": "RFC 6238 is built on HMAC-SHA-1", "hotp": "RFC 4226 is built on HMAC-SHA-1",
    "git": "git names its objects by SHA-1",
}  # fmt: skip


def assert_used(source: Source, line: int, rule: str) -> Answer:
    """S101: an assert that narrows a type is for the reader and the type checker; one that checks input is a fault."""
    for node in source.nodes(line, ast.Assert):
        assert isinstance(node, ast.Assert)
        if isinstance(node.test, ast.Constant) and not node.test.value:
            return "partial", "marks a branch that is never reached; with `python -O` the code goes on past it"
        if not _narrows(node.test):
            return "confirmed", "the assert checks a value, and `python -O` takes the check away"
    return "rejected", "the assert only states a type (isinstance, None); no decision at run time rests on it"


def silent_handler(source: Source, line: int, rule: str) -> Answer:
    """S110, S112: silence is fine in ``__del__`` and where the handler says why."""
    for node in source.nodes(line, ast.ExceptHandler):
        if "__del__" in source.scope_names(node)[:1]:
            return "rejected", "stands in `__del__`: an exception there can reach nobody, Python would only print it"
        if words := source.comment_within(node):
            return "rejected", f"the handler says why it stays silent: “{_short(words)}”"
    return "confirmed", "the exception is dropped without a word: no log, no comment, no narrower type"


def weak_random(source: Source, line: int, rule: str) -> Answer:
    """S311: a guessable number is a fault only where somebody gains by guessing it."""
    calls = source.nodes(line, ast.Call)
    names = [name for call in calls for name in [*source.scope_names(call), *_targets(source, call)]]
    words = " ".join([*names, source.rel]).lower()
    if found := _SECRET.search(_snake(" ".join(names))):
        return "confirmed", f"the number goes into something secret (`{found[0]}`): use the `secrets` module"
    if found := _SPREAD.search(words):
        return "rejected", f"spreads load in time (`{found[0]}`): nobody gains by guessing it"
    if any(_joins_letters(source, call) for call in calls):
        return "confirmed", "builds a text of random letters, which is used like a name or token: use `secrets`"
    if any(_attr(call) in ("choice", "choices", "sample", "shuffle", "randint", "randrange") for call in calls):
        return (
            "rejected",
            f"picks one of several equals in `{(names or ['module'])[0]}`; no name here speaks of a secret",
        )
    return "partial", "no name around it speaks of a secret; a fault only if somebody gains by guessing it"


def weak_hash(source: Source, line: int, rule: str) -> Answer:
    """S303, S324: a weak hash of a secret is a fault; as an identifier it is one for FIPS systems only."""
    calls = source.nodes(line, ast.Call)
    names = [name for call in calls for name in [*source.scope_names(call), *_targets(source, call)]]
    used = " ".join([*names, *(ast.unparse(arg) for call in calls if isinstance(call, ast.Call) for arg in call.args)])
    for word, why in _FIXED_BY.items():
        if word in re.split(r"[^a-z0-9]+", _snake(f"{source.rel} {used}")):
            return "partial", f"{why}: the protocol leaves no choice; a fault only where the code is free to choose"
    if found := _SECRET.search(_snake(used)):
        return "confirmed", f"hashes something secret (`{found[0]}`) with a broken hash"
    if found := _IDENTITY.search(_snake(used)):
        return "partial", f"an identifier (`{found[0]}`), no guard: say `usedforsecurity=False`, for FIPS systems"
    return None


def no_timeout(source: Source, line: int, rule: str) -> Answer:
    """S113: a request without a timeout waits as long as the other side likes."""
    for call in source.nodes(line, ast.Call):
        if isinstance(call, ast.Call) and any(key.arg is None for key in call.keywords):
            return "partial", "keywords are passed on with `**`: a fault only if no caller gives `timeout`"
    return "confirmed", "no timeout anywhere in the call: a server that does not answer holds the caller for ever"


def hard_coded_password(source: Source, line: int, rule: str) -> Answer:
    """S105 to S107: a placeholder, a field's name or a message is no password."""
    for node in source.nodes(line, ast.Constant):
        value = node.value if isinstance(node, ast.Constant) else None
        if not isinstance(value, str):
            continue
        if len(value) < 3 or value.lower() in ("none", "null", "changeme", "password", "token", "secret"):
            return "rejected", f"`{value}` is empty or a placeholder, no password"
        if re.fullmatch(r"[A-Za-z]+([ _.:/-][A-Za-z]+)*[ _.:=/-]?", value):
            return "rejected", f"`{_short(value)}` is a name or a message made of words, no password"
    return "confirmed", "a literal that looks like a real password stands in the code"


def process(source: Source, line: int, rule: str) -> Answer:
    """S603, S607: without a shell and with a constant command nobody can slip anything in."""
    for call in source.nodes(line, ast.Call):
        if not isinstance(call, ast.Call) or not call.args or any(key.arg == "shell" for key in call.keywords):
            continue
        command = call.args[0]
        if isinstance(command, ast.List | ast.Tuple) and all(isinstance(part, ast.Constant) for part in command.elts):
            if rule == "S603":
                return "rejected", "no shell, and every part of the command is a constant"
            return "partial", "the command is a constant, found through PATH: a fault where others may write to PATH"
        if rule == "S603" and isinstance(command, ast.List):
            return "partial", "no shell, the command is a list with values in it: a fault if a value comes from outside"
    return None


def module_import(source: Source, line: int, rule: str) -> Answer:
    """S40x: an import alone does nothing; its uses have findings of their own."""
    return "rejected", "an import alone harms nobody; each risky use has a finding of its own"


def bind_all(source: Source, line: int, rule: str) -> Answer:
    """S104: an address in a comparison or a message binds nothing."""
    for node in source.nodes(line, ast.Constant):
        if source.inside(node, ast.Compare) is not None:
            return "rejected", "the address is only compared with, nothing is bound to it"
    return None


def temp_path(source: Source, line: int, rule: str) -> Answer:
    """S108: a path in a comparison or a docstring is not opened."""
    for node in source.nodes(line, ast.Constant):
        if source.inside(node, ast.Compare) is not None:
            return "rejected", "the path is only compared with, nothing is written there"
    return "partial", "a fixed path in a shared directory: a fault where others can create it first"


SECURITY_RULES: Mapping[str, Rule] = {
    "S101": assert_used, "S104": bind_all, "S105": hard_coded_password, "S106": hard_coded_password,
    "S107": hard_coded_password, "S108": temp_path, "S110": silent_handler, "S112": silent_handler, "S113": no_timeout,
    "S303": weak_hash, "S311": weak_random, "S324": weak_hash, "S403": module_import, "S404": module_import,
    "S405": module_import, "S406": module_import, "S407": module_import, "S408": module_import, "S409": module_import,
    "S603": process, "S607": process,
}  # fmt: skip


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _narrows(test.operand)
    if isinstance(test, ast.BoolOp):
        return all(_narrows(part) for part in test.values)
    if isinstance(test, ast.Call):
        return isinstance(test.func, ast.Name) and test.func.id in ("isinstance", "issubclass", "callable")
    return (
        isinstance(test, ast.Compare)
        and all(isinstance(op, ast.Is | ast.IsNot) for op in test.ops)
        and all(isinstance(side, ast.Constant) and side.value is None for side in test.comparators)
    )


def _targets(source: Source, node: ast.AST) -> list[str]:
    """Names that the value of ``node`` is given to: assignment targets and keywords."""
    out = []
    for above in source.above(node):
        if isinstance(above, ast.keyword) and above.arg:
            out.append(above.arg)
        if isinstance(above, ast.Assign):
            out += [ast.unparse(target) for target in above.targets]
        if isinstance(above, ast.AnnAssign | ast.AugAssign):
            out.append(ast.unparse(above.target))
        if isinstance(above, ast.stmt):
            break
    return out


def _joins_letters(source: Source, call: ast.AST) -> bool:
    outer = source.inside(call, ast.Call)
    return isinstance(outer, ast.Call) and _attr(outer) == "join"


def _attr(call: ast.AST) -> str:
    func = call.func if isinstance(call, ast.Call) else None
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


def _snake(words: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", words).lower()


def _short(words: str, most: int = 70) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"
