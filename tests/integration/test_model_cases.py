"""What real endpoints send, replayed by a real server: every case reads as it should."""

from __future__ import annotations

import json
from contextlib import aclosing
from pathlib import Path

import pytest

from protocol.record import Json
from tests.integration.endpoint import Answer, body, serving, stream
from workers.model import ModelClient
from workers.stream import Reply

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "unit/data/cases/llm-compat.jsonl").read_text("utf-8").splitlines()
]
WHOLE = [case for case in CASES if "raw_sse" not in case["input"]]
RAW = [case for case in CASES if "raw_sse" in case["input"]]


async def ask(answer: Answer) -> Reply:
    async with serving(answer) as endpoint, aclosing(ModelClient(endpoint.entry(), loopback_only=True)) as client:
        return await client.complete([{"role": "user", "content": "你好"}])


def compare(reply: Reply, expect: Json) -> None:
    assert reply.content == expect["content"]
    assert [{"name": call.name, "args": dict(call.args)} for call in reply.tool_calls] == expect["tool_calls"]
    assert all(not call.error for call in reply.tool_calls)
    ids = [call.id for call in reply.tool_calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    if "reasoning" in expect:
        assert reply.reasoning == expect["reasoning"]
    if "usage_total" in expect:
        assert reply.usage.total == expect["usage_total"]
    if "finish" in expect:
        assert reply.finish == expect["finish"]


def test_all_the_cases_are_here() -> None:
    assert len(WHOLE) == 18
    assert len(RAW) == 1


@pytest.mark.parametrize("case", WHOLE, ids=[case["id"] for case in WHOLE])
async def test_case(case: Json) -> None:
    given = case["input"]
    answer = body(given["body"]) if "body" in given else stream(*given["stream"], done=given["done"])
    compare(await ask(answer), case["expect"])


@pytest.mark.parametrize("case", RAW, ids=[case["id"] for case in RAW])
async def test_no_split_breaks_a_character(case: Json) -> None:
    """Every position in turn, and one byte at a time: through the very client, on one connection each."""
    raw = case["input"]["raw_sse"].encode()
    splits = [[raw[:at], raw[at:]] for at in range(1, len(raw))] + [[raw[at : at + 1] for at in range(len(raw))]]
    async with serving(*map(Answer, splits)) as endpoint:
        async with aclosing(ModelClient(endpoint.entry())) as client:
            for _ in splits:
                compare(await client.complete([{"role": "user", "content": "你好"}]), case["expect"])
        assert len(endpoint.requests) == len(splits)
