"""Live text: gathered and sent in order on one side, lines a person can read on the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from coordinator.livelines import WIDTH, LiveLines
from protocol.errors import StoreUnreachable
from protocol.ports import Dispatch
from protocol.stores.redis_live import Piece
from workers.livetext import HELD_MAX, LiveText

MADE = Dispatch("s1", "T1", 1, "writer", "writer_1", "s1", "w@h:1:a", 0, {})


class Store:
    """Keeps what it is sent; ``ok`` False: the fence has fallen."""

    def __init__(self, *, ok: bool = True, away: bool = False) -> None:
        self.sent: list[list[tuple[str, str]]] = []
        self.ok = ok
        self.away = away

    async def add(self, dispatch: Dispatch, pieces: Sequence[tuple[str, str]]) -> bool:
        if self.away:
            raise StoreUnreachable("gone")
        self.sent.append(list(pieces))
        return self.ok

    def text(self) -> str:
        return "".join(text for pieces in self.sent for _, text in pieces)


async def test_pieces_are_gathered_and_nothing_is_lost_or_swapped() -> None:
    store = Store()
    async with LiveText(store, MADE, every_s=0.001) as live:
        for number in range(200):
            live.delta("reasoning" if number < 50 else "content", f"{number},")
            await asyncio.sleep(0)
    assert store.text() == "".join(f"{number}," for number in range(200))
    assert len(store.sent) < 200
    assert [kind for pieces in store.sent for kind, _ in pieces].count("reasoning") >= 1


async def test_what_is_left_is_sent_at_the_end() -> None:
    store = Store()
    async with LiveText(store, MADE, every_s=60) as live:
        live.delta("content", "最后一句")
    assert store.text() == "最后一句"


@pytest.mark.parametrize("store", [Store(away=True), Store(ok=False)], ids=["store away", "fence fallen"])
async def test_it_never_fails_a_turn(store: Store) -> None:
    async with LiveText(store, MADE, every_s=0) as live:
        for _ in range(5):
            live.delta("content", "字")
            await asyncio.sleep(0.001)
    assert len(store.sent) <= 1, "after a fallen fence nothing more is sent"


async def test_it_is_bounded() -> None:
    store = Store()
    async with LiveText(store, MADE, every_s=60) as live:
        for _ in range(40):
            live.delta("content", "x" * 8_192)
    assert len(store.text()) <= HELD_MAX + 8_192


def piece(text: str, agent: str = "writer_1", kind: str = "content", attempt: int = 1) -> Piece:
    return Piece("1-0", "T1", attempt, agent, kind, text)


def test_lines_come_when_they_are_whole() -> None:
    lines = LiveLines()
    assert lines.take(piece("第一")) == []
    assert lines.take(piece("行\n第二")) == [("writer_1", "content", "第一行")]
    assert lines.take(piece("b", "other_1")) == []
    assert lines.take(piece("行\r\n\r\n第三行")) == [("writer_1", "content", "第二行")]
    assert lines.rest("writer_1") == [("writer_1", "content", "第三行")]
    assert lines.rest() == [("other_1", "content", "b")]
    assert lines.rest() == lines.rest("nobody") == []


def test_another_attempt_or_kind_begins_a_new_line() -> None:
    lines = LiveLines()
    lines.take(piece("想一想", kind="reasoning"))
    assert lines.take(piece("写", attempt=1)) == [("writer_1", "reasoning", "想一想")]
    assert lines.take(piece("重写", attempt=2)) == [("writer_1", "content", "写")]


def test_a_line_without_an_end_is_cut() -> None:
    lines = LiveLines()
    shown = lines.take(piece("长" * (2 * WIDTH + 5)))
    assert [len(text) for _, _, text in shown] == [WIDTH, WIDTH]
    assert lines.rest() == [("writer_1", "content", "长" * 5)]
