"""Short ways to write deliveries and verdicts, and strategies that make them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from coordinator.merge import Delivery, Merged, MergeInputs, Verdict, merge
from protocol.record import Event, Json, Record, Trace


def delivery(task: str, result: Json, order: int = 0, **more: Any) -> Delivery:
    """A delivery by ``master_<task>`` at that place in the log; alternatives share their ``prefix``."""
    values: dict[str, Any] = {"who": f"master_{task}", "time": 1_719_600_000, **more}
    return Delivery(task=task, result=result, order=(order,), **values)


def verdict(task: str, word: Any, who: str = "verifier_01", order: int = 100, **more: Any) -> Verdict:
    return Verdict(task=task, verdict=word, who=who, time=1_719_600_000, order=(order,), **more)


def merged(*parts: Delivery | Verdict, force: bool = False, **more: Any) -> Merged:
    """The merge of these deliveries and verdicts."""
    deliveries = tuple(part for part in parts if isinstance(part, Delivery))
    verdicts = tuple(part for part in parts if isinstance(part, Verdict))
    return merge(MergeInputs(deliveries, verdicts, **more), force=force)


def record(name: str, event: Event, who: str = "master_1", parent: str | None = None, **detail: Json) -> Record:
    """A record of the session ``conv_1``."""
    return Record(
        id=name, who=who, time=1_719_600_000, event=event, what=event.replace("_", " "), detail=detail,
        trace=Trace(parent_id=parent, session_id="conv_1"),
    )  # fmt: skip


def log(*records: Record) -> list[tuple[str, Record]]:
    """The records with entries as a store gives them."""
    return [(f"1719600000{number:03}-0", one) for number, one in enumerate(records)]


TEXTS = st.one_of(
    st.sampled_from([None, "", " \n", "甲", "甲乙", "甲乙丙", "未通过", "cafe\u0301", "café", "a\r\nb ", "a\nb"]),
    st.text(alphabet="甲乙ab \n", max_size=8),
)
RESULTS = st.one_of(
    TEXTS,
    st.sampled_from([[], {}, 0, False, {"a": [1]}, [1]]),
    st.fixed_dictionaries({"items": st.lists(st.fixed_dictionaries({
        "file": st.sampled_from(["a.py", "乙.py"]), "line": st.integers(1, 2), "severity": st.sampled_from("hl"),
    }), max_size=3)}),
)  # fmt: skip


@st.composite
def inputs(draw: st.DrawFn) -> MergeInputs:
    """Deliveries with and without alternatives and merge keys, verdicts of three verifiers (one judges itself)."""
    count = draw(st.integers(0, 8))
    names = [f"T{number // 2}_{'ab'[number % 2]}" for number in range(count)]
    orders = draw(st.permutations(range(count)))
    deliveries = tuple(
        delivery(
            name, draw(RESULTS), order, who=draw(st.sampled_from(["master_1", "master_2", "v3"])),
            prefix=draw(st.sampled_from([None, name, "同"])), merge_key=draw(st.sampled_from([None, ("file", "line")])),
        )
        for name, order in zip(names, orders, strict=True)
    )  # fmt: skip
    words = st.sampled_from(["confirmed", "partial", "rejected"])
    entries = st.fixed_dictionaries({"file": st.just("a.py"), "line": st.integers(1, 2), "verdict": words})
    verdicts = tuple(
        verdict(
            draw(st.sampled_from([*names, "nobody"])), draw(words), draw(st.sampled_from(["v1", "v2", "v3"])), number,
            items=tuple(draw(st.lists(entries, max_size=2))),
        )
        for number in range(draw(st.integers(0, 6)))
    )  # fmt: skip
    cancelled = draw(st.lists(st.sampled_from(["C1", "C2"]), unique=True))
    return MergeInputs(
        deliveries,
        verdicts,
        standing=tuple((task, "cancelled", "不要了") for task in cancelled),
        policy={"disagreement": draw(st.sampled_from(["partial", "rejected", "newest"]))},
        session="conv_1",
    )
