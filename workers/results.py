"""What a dispatch refers to, fetched: results of its dependencies, and their places in its input.

Guarantees: every ``{"$ref": {task, entry}}`` and every artifact among the results is replaced by the result itself,
read from the session's own log and artifacts; then every ``{"$result": task, "path": "a.b.0"}`` in the input is
replaced by that (part of a) result. A reference that leads nowhere is a failure that names it. Never writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import orjson

from protocol.errors import TaskError
from protocol.keys import Keys
from protocol.ports import Dispatch
from protocol.record import Json
from protocol.stores.client import Client
from protocol.stores.redis_artifacts import Artifacts
from protocol.stores.redis_log import RedisLog

VERDICT_FIELDS: Final = ("verdict", "verifies", "reasons", "result", "items")


async def with_results(dispatch: Dispatch, client: Client, keys: Keys) -> Dispatch:
    """The dispatch with its results and its input in full."""
    given = dispatch.detail.get("results")
    if not isinstance(given, Mapping) or not given:
        return dispatch
    results = {task: await _fetch(dispatch, task, found, client, keys) for task, found in given.items()}
    detail = {**dispatch.detail, "results": results}
    if "input" in detail:
        detail["input"] = filled(detail["input"], results)
    return replace(dispatch, detail=detail)


async def _fetch(dispatch: Dispatch, task: str, found: Json, client: Client, keys: Keys) -> Json:
    if not isinstance(found, Mapping):
        return found
    if isinstance(ref := found.get("$ref"), Mapping):
        record = await RedisLog(client, keys).get(dispatch.space, str(ref.get("entry", "")))
        if record is None:
            raise _nowhere(task, f"its record {ref.get('entry')!r} is not in the log")
        found = record.detail
    if isinstance(artifact := found.get("artifact"), Mapping):
        data = await Artifacts(client, keys).get(dispatch.space, str(artifact.get("sha256", "")))
        return orjson.loads(data)
    if "verdict" in found:
        return {key: found[key] for key in VERDICT_FIELDS if key in found}
    return found.get("result")


def filled(value: Json, results: Mapping[str, Json]) -> Json:
    """``value`` with the results in their places."""
    if isinstance(value, dict):
        if isinstance(task := value.get("$result"), str):
            if task not in results:
                raise _nowhere(task, "the input names it, `depends_on` does not")
            return _part(results[task], task, str(value.get("path", "")))
        return {key: filled(part, results) for key, part in value.items()}
    return [filled(part, results) for part in value] if isinstance(value, list) else value


def _part(value: Json, task: str, path: str) -> Json:
    for step in filter(None, path.split(".")):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            raise _nowhere(task, f"it has nothing at {path!r}") from None
    return value


def _nowhere(task: str, why: str) -> TaskError:
    return TaskError(f"the result of task {task!r} can't be used: {why}", kind="no_result", retryable=False)
