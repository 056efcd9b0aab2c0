"""A small real model behind llama.cpp's own server: streaming, a constrained shape, a token limit that is hit."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.kit.modellist import ModelEntry
from protocol.kit.settings import Settings
from protocol.ports import Delivered
from protocol.record import Json
from tests.unit.agentkit import CountedTools, MemoryConversation, OpenFence, Store, dispatch, role
from workers import localmodel
from workers.agent import run_agent
from workers.model import ModelClient

ROOT = Path(__file__).resolve().parents[2]


def _missing() -> str:
    try:
        localmodel.weights()
    except ConfigError as error:
        return str(error)
    return ""


installed = pytest.mark.skipif(bool(_missing()), reason=_missing() or "-")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The served model, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-m", "workers.localmodel"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:  # fmt: skip
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture
async def client(url: str) -> AsyncIterator[ModelClient]:
    made = ModelClient(ModelEntry("local", "", url, context_window=8_192, max_output_tokens=96), loopback_only=True)
    async with aclosing(made):
        yield made


def ask(text: str) -> list[dict[str, Json]]:
    return [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": text}]


@installed
@pytest.mark.slow
async def test_it_streams_and_names_itself_and_its_use(client: ModelClient) -> None:
    pieces: list[str] = []
    reply = await client.complete(ask("Name three colours."), most=48, on_delta=lambda kind, text: pieces.append(text))
    assert reply.content
    assert "".join(pieces) == reply.content
    assert len(pieces) > 1
    assert reply.model == localmodel.NAME
    assert reply.usage.prompt > 0
    assert reply.usage.completion >= len(pieces) - 1
    assert reply.notes == (), "nothing had to be left out"


@installed
@pytest.mark.slow
async def test_an_answer_that_hits_the_limit_says_so(client: ModelClient) -> None:
    reply = await client.complete(ask("Count from one to one hundred in words."), most=8)
    assert (reply.finish, reply.usage.completion) == ("length", 8)


@installed
@pytest.mark.slow
async def test_a_shape_is_kept_by_the_endpoint_itself(client: ModelClient) -> None:
    colours = {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 2, "maxItems": 2}
    schema = {"type": "object", "required": ["colours"], "properties": {"colours": colours}}
    reply = await client.complete(ask("Name two colours."), schema=schema, most=64)
    assert reply.finish == "stop"
    assert set(json.loads(reply.content)["colours"]) <= {"red", "green", "blue"}


@installed
@pytest.mark.slow
async def test_an_agent_delivers_in_the_shape_of_its_role(client: ModelClient) -> None:
    """The whole turn with a real model: base prompt, tools on offer, a constrained answer, the gates behind it."""
    schema = {"type": "object", "required": ["ok"], "properties": {"ok": {"type": "boolean"}}}
    given = dispatch(prompt="Is water wet?", output_schema=schema)
    store = Store(owner=given.owner)
    outcome = await run_agent(
        given, OpenFence(), role=role(body="You answer."), conversation=MemoryConversation(store, given),
        model=client, tools=CountedTools(),
    )  # fmt: skip
    assert isinstance(outcome, Delivered), outcome
    assert isinstance(outcome.detail["result"]["ok"], bool)
    assert outcome.detail["usage"]["prompt_tokens"] > 100


def test_the_command_runs_with_the_endpoint_in_its_environment(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1/v1"
    code = (
        "import os, sys; e = os.environ; sys.exit(7 * (e['OPENAI_BASE_URL'] == sys.argv[1]) * ('ROLECALL_CONFIG' in e))"
    )
    assert localmodel.run([sys.executable, "-c", code, url], url) == 7
    file = tmp_path / "rolecall.toml"
    file.write_text(localmodel.settings_text(url), encoding="utf-8")
    [entry] = Settings.load({}, tmp_path).models
    assert (entry.model, entry.context_window, entry.concurrent) == (localmodel.NAME, 8_192, 2)


def test_what_is_not_installed_is_one_line_with_its_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(localmodel, "WEIGHTS", "no_such_package")
    with pytest.raises(ConfigError, match="make local-model"):
        localmodel.weights()
