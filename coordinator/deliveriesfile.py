"""Deliveries from a file instead of a log: ``{"deliveries": [...], "verdicts": [...]}``.

Guarantees: a wrong field is refused by its path; the order of the two lists does not matter, since there the writers'
``time`` is all the order there is, with a fixed tie-break. Pure: the file was read by somebody else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coordinator.deliveries import VERDICTS, Delivery, MergeInputs, Verdict, VerdictWord, natural
from protocol.errors import Refused
from protocol.record import TIME_MAX, Json, canonical, is_identifier

SHAPE = '{"deliveries": [{task, who, time, result, prefix?, merge_key?}], "verdicts": [{task, verdict, time, who}]}'


def from_deliveries_file(obj: Json) -> MergeInputs:
    """What a merge needs, from the parsed file.

    A delivery: ``task, who, time`` (Unix seconds), ``result`` (missing: empty) and, where given, ``prefix, role,
    merge_key`` (list of field names), ``title``. A verdict: ``task, verdict, who, time`` and, where given, ``reasons``
    (list), ``items`` (list of objects). ``policy`` and ``session`` may stand beside the lists. Other fields are left
    alone. Raises Refused naming the field, also where one task has two different results.
    """
    if not isinstance(obj, Mapping):
        raise _refused("$", f"must be an object, not {_kind(obj)}")
    if "deliveries" not in obj:
        raise _refused("deliveries", "is missing")
    deliveries: dict[str, Delivery] = {}
    for path, row in _rows(obj, "deliveries"):
        delivery = _delivery(path, row)
        before = deliveries.setdefault(delivery.task, delivery)
        if canonical(before.result) != canonical(delivery.result):
            raise _refused(f"{path}.task", f"{delivery.task!r} was delivered already, with another result")
        if delivery.order < before.order:
            deliveries[delivery.task] = delivery
    verdicts = tuple(_verdict(path, row) for path, row in _rows(obj, "verdicts"))
    policy = obj.get("policy", {})
    if not isinstance(policy, Mapping):
        raise _refused("policy", f"must be an object, not {_kind(policy)}")
    session = _text("session", obj, optional=True)
    return MergeInputs(tuple(deliveries.values()), verdicts, policy=dict(policy), session=session)


def _delivery(path: str, row: Mapping[str, Json]) -> Delivery:
    task, who, time = _id(path, row), _text(f"{path}.who", row), _time(path, row)
    key = row.get("merge_key")
    if key is not None and not (isinstance(key, list) and key and all(isinstance(name, str) and name for name in key)):
        raise _refused(f"{path}.merge_key", "must be a list of field names")
    result = row.get("result")
    try:
        canonical(result)
    except ValueError as error:
        raise _refused(f"{path}.result", str(error)) from None
    return Delivery(
        task=task,
        who=who,
        time=time,
        result=result,
        order=(time, natural(task), who),
        prefix=_text(f"{path}.prefix", row, optional=True) or None,
        role=_text(f"{path}.role", row, optional=True) or None,
        merge_key=tuple(key) if key else None,
        title=_text(f"{path}.title", row, optional=True),
    )


def _verdict(path: str, row: Mapping[str, Json]) -> Verdict:
    time = _time(path, row)
    reasons = row.get("reasons", [])
    if not isinstance(reasons, list) or not all(isinstance(reason, str) for reason in reasons):
        raise _refused(f"{path}.reasons", "must be a list of texts")
    items = row.get("items", [])
    if not isinstance(items, list) or not all(isinstance(item, Mapping) for item in items):
        raise _refused(f"{path}.items", "must be a list of objects")
    return Verdict(
        task=_id(path, row),
        verdict=_word(path, row),
        who=_text(f"{path}.who", row),
        time=time,
        order=(time,),
        reasons=tuple(reasons),
        items=tuple(items),
    )


def _rows(obj: Mapping[str, Json], name: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    rows = obj.get(name, [])
    if not isinstance(rows, list):
        raise _refused(name, f"must be a list, not {_kind(rows)}")
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise _refused(f"{name}[{number}]", f"must be an object, not {_kind(row)}")
        yield f"{name}[{number}]", row


def _id(path: str, row: Mapping[str, Json]) -> str:
    task = _text(f"{path}.task", row)
    if not is_identifier(task):
        raise _refused(f"{path}.task", f"{task!r} is no task id (1 to 200 of A-Z a-z 0-9 _ - . : / #)")
    return task


def _word(path: str, row: Mapping[str, Json]) -> VerdictWord:
    given = row.get("verdict")
    for word in VERDICTS:
        if word == given:
            return word
    raise _refused(f"{path}.verdict", f"{given!r} is none of {', '.join(VERDICTS)}")


def _text(path: str, row: Mapping[str, Json], *, optional: bool = False) -> str:
    name = path.rpartition(".")[2]
    value = row.get(name)
    if value is None and optional:
        return ""
    if name not in row:
        raise _refused(path, "is missing")
    if not isinstance(value, str) or not (value or optional):
        raise _refused(path, f"must be a text, not {_kind(value)}")
    return value


def _time(path: str, row: Mapping[str, Json]) -> int:
    value = row.get("time")
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= TIME_MAX:
        raise _refused(f"{path}.time", f"must be Unix seconds (a whole number), not {value!r}")
    return value


def _kind(value: Json) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return "an empty text" if value == "" else kinds.get(type(value), "a number")


def _refused(path: str, message: str) -> Refused:
    return Refused(f"{path}: {message}", reason="deliveries", path=path, mend=f"the shape is {SHAPE}")
