"""Commands as records: valid by the contract, one identity for one effect, one sentence for people."""

from __future__ import annotations

import pytest

from coordinator.commands import Ask, Assign, By, Command, Decide, Finish, Message, Pend, to_record
from protocol.record import Record, missing_detail
from protocol.tasks import command_identity

S = "conv_20261130_120000_001"
ALL: list[Command] = [
    Pend("a", {"role": "stub", "prefix": "a"}, S, "a 等待"),
    Assign("a", 2, "stub", "stub_1", {"prompt": "看"}, S, "a goes to stub_1"),
    Decide("adopt_plan", "3 tasks", "plan.1", task="plan.1"),
    Decide("guard", "太多", "tokens_0", detail={"guard": "tokens"}),
    Finish("partial", "2 of 3", 1, (("c", "blocked: x", ""), ("d", "not run, cause c", "c"))),
    Ask("stub_1_1", "哪一个？"),
    Message("stub_1_1", "stub_1", "请快一点"),
]


@pytest.mark.parametrize("command", ALL, ids=lambda c: type(c).__name__)
def test_a_command_is_a_valid_record_by_a_leader(command: Command) -> None:
    record = to_record(command, session=S, by=By("plan", 1, "5-0", 3), time=7)
    assert Record.model_validate(record.to_json()) == record
    assert missing_detail(record) == []
    assert record.detail["by"] == {"flow": "plan", "version": 1, "as_of": "5-0", "term": 3}
    assert command_identity(record)
    assert (record.who, record.time, record.session) == ("leader", 7, S)


def test_ids_name_the_effect_whoever_decides_it() -> None:
    first = [to_record(c, session=S, by=By("plan", 1, "5-0", 3), time=7) for c in ALL]
    second = [to_record(c, session=S, by=By("plan", 1, "9-0", 4), time=8) for c in ALL]
    assert [(r.id, r.event, r.attempt) for r in first] == [(r.id, r.event, r.attempt) for r in second]
    assert [r.id for r in first] == [
        "a",
        "a",
        "DEC_adopt_plan_plan.1",
        "DEC_guard_tokens_0",
        f"DEC_finish_{S}_1",
        "ASK_stub_1_1",
        "INFO_msg_stub_1_1",
    ]


def test_an_effect_with_too_long_a_name_gets_a_digest_of_its_own() -> None:
    by = By("plan", 1, "5-0", 3)
    ids = {to_record(Decide("cancel", "x", "t" * 190 + str(n)), session=S, by=by, time=1).id for n in (1, 2, 2)}
    assert len(ids) == 2
    assert all(i.startswith("DEC_cancel_") and len(i) < 60 for i in ids)


def test_what_is_one_line_without_control_characters() -> None:
    command = Decide("refuse_plan", "bad\nplan\x00 of\u2028 many 行" + "长" * 5_000, "plan.1")
    what = to_record(command, session=S, by=By("plan", 1, "5-0", 3), time=1).what
    assert what.startswith("refuse plan: bad plan of many 行长")
    assert len(what) == 300
