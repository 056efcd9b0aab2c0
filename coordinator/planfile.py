"""The plan: a graph of tasks, read from text or from a delivery, checked before anything starts.

Guarantees: a `Plan` that exists has no cycle, no missing dependency, no duplicate id, and every task in it fits into a
record; what is wrong is one `PlanRefused` that names the tasks. Pure: reads no file, asks no store, calls no clock.

Shape: ``{"goal": …, "guards": {…}, "models": {role: key}, "tasks": [task, …]}`` or the bare list of tasks. A task's
nested ``subtasks`` run after it, under it; nobody waits for them who does not name them in ``depends_on``. A task with
``verify: role`` brings a task ``<id>.verify`` of that role along, which starts when the task is completed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Final, cast

import orjson
import yaml

from coordinator import plangraph
from protocol.errors import PlanRefused
from protocol.record import Json, is_identifier, is_name

TEXT_MAX: Final = 8 * 1024 * 1024
TASKS_MAX: Final = 10_000
ID_MAX: Final = 190
"""Shorter than a record's id, so that ``<id>.verify`` fits."""
TITLE_MAX: Final = 256
TASK_MAX_BYTES: Final = 160 * 1024
"""A task's own prompt, input and schema: what is larger is put into an artifact or a file by the user."""
NODES_MAX: Final = 500_000
DEPTH_MAX: Final = 3
SUBTASKS_MAX: Final = 50
RESERVED: Final = ("HB_", "CP_", "SUM_", "DEC_", "PV_", "MERGE_", "ASK_", "INFO_", "ERR_")

SCHEMA: Final[Mapping[str, Json]] = {
    "type": "object",
    "required": ["tasks"],
    "properties": {
        "tasks": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["id", "role", "prompt"],
                "properties": {
                    "id": {"type": "string"},
                    "role": {"type": "string"},
                    "prompt": {"type": "string"},
                    "title": {"type": "string"},
                    "depends_on": {"type": "array", "items": {"type": "string"}},
                },
            },
        }
    },
}
"""What a planner's delivery looks like."""


@dataclass(frozen=True, slots=True)
class PlanTask:
    """One task of a plan. ``parent`` is the task it stands under, ``depth`` how deep (0: the plan's own)."""

    id: str
    role: str
    prompt: str = ""
    depends_on: tuple[str, ...] = ()
    title: str = ""
    task_type: str = ""
    input: Json = None
    priority: int = 0
    order_index: int = 0
    verify: str = ""
    alternative_of: str = ""
    merge_key: tuple[str, ...] = ()
    output_schema: Mapping[str, Json] | None = None
    parent: str = ""
    depth: int = 0
    verifies: str = ""

    def to_json(self) -> dict[str, Json]:
        """The task without its defaults; ``from_json`` is the inverse."""
        out: dict[str, Json] = {"id": self.id, "role": self.role}
        for name, empty in _DEFAULTS.items():
            value = getattr(self, name)
            if value != empty:
                out[name] = list(value) if isinstance(value, tuple) else value
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Json]) -> PlanTask:
        values: dict[str, Json] = {k: tuple(v) if k in ("depends_on", "merge_key") else v for k, v in data.items()}
        return cls(**values)


_DEFAULTS: Final[Mapping[str, Json]] = {
    "prompt": "", "depends_on": (), "title": "", "task_type": "", "input": None, "priority": 0, "order_index": 0,
    "verify": "", "alternative_of": "", "merge_key": (), "output_schema": None, "parent": "", "depth": 0,
    "verifies": "",
}  # fmt: skip
_USER_KEYS: Final = frozenset(_DEFAULTS) - {"parent", "depth", "verifies"} | {"id", "role", "subtasks"}
_PLAN_KEYS: Final = frozenset({"goal", "title", "guards", "models", "tasks"})


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan: tasks in file order, a task's verifier right behind it, its subtasks after that."""

    tasks: tuple[PlanTask, ...]
    goal: str = ""
    guards: Mapping[str, Json] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)

    @property
    def roles(self) -> dict[str, list[str]]:
        """Every role that the plan names -> its tasks."""
        out: dict[str, list[str]] = {}
        for task in self.tasks:
            out.setdefault(task.role, []).append(task.id)
        return out

    def check_roles(self, known: Collection[str]) -> None:
        """Raises PlanRefused for a role that is not among ``known``, naming the tasks."""
        unknown = {role: tasks for role, tasks in self.roles.items() if role not in known}
        if unknown:
            parts = []
            for role, tasks in unknown.items():
                near = get_close_matches(role, known, n=1)
                hint = f", did you mean {near[0]!r}?" if near else ""
                parts.append(f"role {role!r} of {_names(tasks)}{hint}")
            shown = ", ".join(sorted(known)[:30]) or "none yet: is a worker running?"
            raise PlanRefused(
                f"nobody ever published {'; '.join(parts)}",
                reason="unknown_role",
                tasks=tuple(t for tasks in unknown.values() for t in tasks),
                mend=f"known roles: {shown}",
            )


def read(text: str, *, name: str = "the plan") -> Plan:
    """The plan in ``text`` (YAML or JSON; the caller read it from somewhere called ``name``). Raises PlanRefused."""
    return check(parse(text, name=name))


def parse(text: str, *, name: str = "the plan") -> Json:
    """The value in ``text``, unchecked but for its form. Raises PlanRefused (``bad_text``)."""
    if len(text) > TEXT_MAX:
        raise _bad(f"{name} is larger than {TEXT_MAX} characters", "bad_text")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            value = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            at = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
            raise _bad(f"{name} is neither JSON nor YAML: {error.problem}{at}", "bad_text") from None
        except (yaml.YAMLError, ValueError) as error:
            raise _bad(f"{name} is neither JSON nor YAML: {' '.join(str(error).split())}", "bad_text") from None
        except RecursionError:
            raise _bad(f"{name} is nested too deep", "bad_text") from None
    if _too_large(value):
        raise _bad(f"{name} has more than {NODES_MAX} values or is nested too deep", "bad_text")
    return value


def check(data: Json, *, taken: Collection[str] = (), parent: str = "", depth: int = 0, most: int = TASKS_MAX) -> Plan:
    """A checked plan from a value (a dict with ``tasks``, or the list). ``taken``: ids that exist already (they may
    be depended on, not used again); ``parent``, ``depth``: where a proposed plan stands. Raises PlanRefused."""
    head, listed = _head(data)
    tasks = tuple(_flat(listed, parent, depth))
    if len(tasks) > most:
        raise _bad(f"{len(tasks)} tasks (verifiers included), at most {most}", "too_many")
    deep = [t.id for t in tasks if t.depth > DEPTH_MAX]
    if deep:
        raise _bad(f"{_names(deep)}: deeper than {DEPTH_MAX} levels of subtasks", "too_deep", deep)
    plangraph.check(tasks, taken)
    return Plan(tasks, *head)


def check_proposal(subtasks: Json, *, parent: str, depth: int, taken: Collection[str]) -> Plan:
    """A delivery's ``detail.subtasks``: checked like a user's file, with its own limits."""
    if not isinstance(subtasks, list):
        raise _bad(f"subtasks of {parent!r} are no list", "bad_task", [parent])
    if len(subtasks) > SUBTASKS_MAX:
        raise _bad(f"{len(subtasks)} subtasks in one delivery, at most {SUBTASKS_MAX}", "too_many", [parent])
    if depth > DEPTH_MAX:
        raise _bad(f"subtasks of {parent!r} would be {depth} levels deep, at most {DEPTH_MAX}", "too_deep", [parent])
    plan = check(subtasks, taken=taken, parent=parent, depth=depth)
    own = sum(1 for t in plan.tasks if not t.verifies)
    if own > SUBTASKS_MAX:
        raise _bad(f"{own} subtasks in one delivery, at most {SUBTASKS_MAX}", "too_many", [parent])
    return plan


def of_delivery(result: Json) -> Plan:
    """The plan that a planner role delivered, as an object or as text."""
    if result is None:
        raise _bad("the planner delivered nothing", "bad_task")
    return read(result, name="the delivered plan") if isinstance(result, str) else check(result)


def opening(detail: Mapping[str, Json]) -> Plan | None:
    """The plan that a session's root record brings along (inline, or a solo's one task); None where it has none."""
    if detail.get("flow") == "solo":
        task = {
            k: v for k, v in detail.items() if k in ("role", "verify", "input", "output_schema", "title", "merge_key")
        }
        return check([{"id": "solo", "prompt": _text(detail.get("prompt") or detail.get("goal")), **task}])
    return check(detail["plan"]) if detail.get("plan") is not None else None


def _head(data: Json) -> tuple[tuple[str, Mapping[str, Json], Mapping[str, str]], list[Json]]:
    if data is None:
        return ("", {}, {}), []
    if isinstance(data, list):
        return ("", {}, {}), data
    if not isinstance(data, dict):
        raise _bad(f"a plan is an object with 'tasks' or a list of tasks, not {type(data).__name__}", "bad_task")
    _near_miss(data, _PLAN_KEYS, "the plan", ())
    tasks, guards, models = data.get("tasks") or [], data.get("guards") or {}, data.get("models") or {}
    if not isinstance(tasks, list):
        raise _bad("'tasks' is no list", "bad_task")
    if not isinstance(guards, dict) or not isinstance(models, dict):
        raise _bad("'guards' and 'models' are objects", "bad_task")
    return (_text(data.get("goal")), guards, {str(k): str(v) for k, v in models.items()}), tasks


def _flat(listed: list[Json], parent: str, depth: int) -> Iterator[PlanTask]:
    """Tasks in order, each with its verifier and its nested subtasks behind it (at most a few levels)."""
    for at, raw in enumerate(listed):
        task, nested = _task(raw, at, parent, depth)
        yield task
        if task.verify:
            yield PlanTask(
                id=f"{task.id}.verify",
                role=task.verify,
                depends_on=(task.id,),
                title=f"verify {task.title or task.id}"[:TITLE_MAX],
                priority=task.priority,
                order_index=task.order_index,
                parent=task.id,
                depth=task.depth,
                verifies=task.id,
            )
        if nested:
            if depth >= DEPTH_MAX:
                raise _bad(f"subtasks of {task.id!r}: at most {DEPTH_MAX} levels", "too_deep", [task.id])
            yield from _flat(nested, task.id, depth + 1)


def _task(raw: Json, at: int, parent: str, depth: int) -> tuple[PlanTask, list[Json]]:
    where = f"task {at + 1}" + (f" under {parent!r}" if parent else "")
    if not isinstance(raw, dict):
        raise _bad(f"{where} is no object", "bad_task")
    name = raw.get("id")
    name = str(name) if isinstance(name, int) and not isinstance(name, bool) else name
    if not isinstance(name, str) or not is_identifier(name) or len(name) > ID_MAX or name.startswith(RESERVED):
        raise _bad(
            f"{where}: id {name!r} is no task id", "bad_task",
            mend=f"1 to {ID_MAX} of A-Z a-z 0-9 _ - . : / #, not starting with {', '.join(RESERVED)}",
        )  # fmt: skip
    _near_miss(raw, _USER_KEYS, f"task {name!r}", (name,))
    role = raw.get("role")
    if not isinstance(role, str) or not is_name(role):
        raise _bad(f"task {name!r}: role {role!r} is no role's name", "bad_task", [name])
    nested = raw.get("subtasks") or []
    if not isinstance(nested, list):
        raise _bad(f"task {name!r}: subtasks are no list", "bad_task", [name])
    depends = _names_in(raw, "depends_on", name)
    if parent and parent not in depends:
        depends = (parent, *depends)
    schema = raw.get("output_schema")
    if schema is not None and not isinstance(schema, dict):
        raise _bad(f"task {name!r}: output_schema is no object", "bad_task", [name])
    task = PlanTask(
        id=name,
        role=role,
        prompt=_word(raw, "prompt", name),
        depends_on=depends,
        title=_word(raw, "title", name),
        task_type=_word(raw, "task_type", name),
        input=raw.get("input"),
        priority=_whole(raw, "priority", name),
        order_index=_whole(raw, "order_index", name),
        verify=_word(raw, "verify", name),
        alternative_of=_word(raw, "alternative_of", name),
        merge_key=_names_in(raw, "merge_key", name),
        output_schema=schema,
        parent=parent,
        depth=depth,
    )
    if len(task.title) > TITLE_MAX:
        raise _bad(f"task {name!r}: the title is longer than {TITLE_MAX}", "bad_task", [name])
    if task.verify and not is_name(task.verify):
        raise _bad(f"task {name!r}: verify {task.verify!r} is no role's name", "bad_task", [name])
    _storable(task)
    return task, nested


def _storable(task: PlanTask) -> None:
    try:
        size = len(orjson.dumps(task.to_json()))
    except (TypeError, ValueError) as error:
        raise _bad(f"task {task.id!r} holds a value that is no JSON: {error}", "bad_task", [task.id]) from None
    if size > TASK_MAX_BYTES:
        raise _bad(
            f"task {task.id!r} is {size} bytes, at most {TASK_MAX_BYTES}", "bad_task", [task.id],
            mend="put what is large into a file and name it in `input`",
        )  # fmt: skip


def _near_miss(raw: Mapping[Json, Json], known: Collection[str], where: str, tasks: Iterable[str]) -> None:
    """A key that is nearly a known one is a slip; any other is the user's own and left alone."""
    for key in raw:
        if key not in known and (near := get_close_matches(str(key), known, n=1, cutoff=0.75)):
            raise _bad(f"{where}: unknown key {key!r}", "bad_task", tasks, mend=f"did you mean {near[0]!r}?")


def _names_in(raw: Mapping[str, Json], key: str, task: str) -> tuple[str, ...]:
    value = raw.get(key)
    listed = [] if value is None else value if isinstance(value, list) else [value]
    out = [str(v) if isinstance(v, int) and not isinstance(v, bool) else v for v in listed]
    if not all(isinstance(v, str) and v for v in out):
        raise _bad(f"task {task!r}: {key} is a list of names, not {value!r}", "bad_task", [task])
    return tuple(dict.fromkeys(cast("list[str]", out)))


def _word(raw: Mapping[str, Json], key: str, task: str) -> str:
    value = raw.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _bad(f"task {task!r}: {key} is no text", "bad_task", [task])
    return value


def _whole(raw: Mapping[str, Json], key: str, task: str) -> int:
    value = raw.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 2**31:
        raise _bad(f"task {task!r}: {key} {value!r} is no whole number", "bad_task", [task])
    return value


def _too_large(value: Json) -> bool:
    """More values than any plan has (aliases of YAML counted as often as they stand), or nested without end."""
    count, level = 0, [value]
    for _ in range(200):
        following: list[Json] = []
        for item in level:
            inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
            count += len(inner)
            if count > NODES_MAX:
                return True
            following.extend(inner)
        if not following:
            return False
        level = following
    return True


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""


def _names(tasks: Collection[str]) -> str:
    return plangraph.names(tasks)


def _bad(message: str, reason: str, tasks: Iterable[str] = (), *, mend: str = "") -> PlanRefused:
    return PlanRefused(message, reason=reason, tasks=tuple(tasks), mend=mend)
