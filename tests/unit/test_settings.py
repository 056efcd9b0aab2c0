"""Settings: sources, defaults, and what a wrong value is told."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from protocol.errors import ConfigError
from protocol.kit.modellist import find_model
from protocol.kit.settings import Settings, hide_password, is_loopback
from protocol.kit.settings_table import TABLE

DEFAULTS = {
    "REDIS_URL": None,
    "ROLECALL_PREFIX": "rc:",
    "ROLECALL_ROLES": (),
    "ROLECALL_SKILLS": (),
    "ROLECALL_BEAT_S": 5,
    "ROLECALL_DEAD_S": 15,
    "ROLECALL_HEARTBEAT_S": 120,
    "ROLECALL_LOST_S": 300,
    "ROLECALL_LOST_POLICY": "reassign",
    "ROLECALL_TRIES": 3,
    "ROLECALL_RETRY_DELAYS_S": (30, 60),
    "ROLECALL_SWEEP_S": 2,
    "ROLECALL_GRACE_S": 30,
    "ROLECALL_CONCURRENCY": None,
    "ROLECALL_DETAIL_MAX_BYTES": 262144,
    "ROLECALL_METRICS_PORT": None,
    "ROLECALL_LANG": "en",
    "ROLECALL_CRASH_AT": None,
    "ROLECALL_STALLED_LOST_S": None,
    "OPENAI_BASE_URL": None,
    "OPENAI_API_KEY": None,
    "OPENAI_MODEL": None,
}


def load(folder: Path, toml: str | None = None, **env: str) -> Settings:
    if toml is not None:
        (folder / "rolecall.toml").write_text(toml, encoding="utf-8")
    return Settings.load({"HOME": "/home/someone", **env}, folder)


def test_the_defaults_are_those_of_the_command_lines_page(tmp_path):
    settings = load(tmp_path)
    by_name = {row.name: getattr(settings, row.attr) for row in TABLE}
    assert {name: by_name[name] for name in DEFAULTS} == DEFAULTS
    assert settings.models == ()
    assert settings.data_dir.is_relative_to("/home/someone")


def test_every_row_is_an_attribute_and_its_default_is_the_same(tmp_path):
    attributes = {entry.name: entry.default for entry in fields(Settings)}
    for row in TABLE:
        assert row.attr in attributes
        if row.attr != "data_dir":
            assert attributes[row.attr] == row.default, row.name
    assert len({row.key for row in TABLE}) == len(TABLE)


def test_the_environment_goes_before_the_file_and_the_file_before_the_default(tmp_path):
    settings = load(tmp_path, "beat_s = 1\ndead_s = 7.5\nlang = 'zh'\n", ROLECALL_BEAT_S="2.5")
    assert (settings.beat_s, settings.dead_s, settings.lang, settings.sweep_s) == (2.5, 7.5, "zh", 2.0)
    source = {name: where for name, _, where in settings.shown()}
    assert source["ROLECALL_BEAT_S"] == "environment"
    assert source["ROLECALL_DEAD_S"] == str(tmp_path / "rolecall.toml")
    assert source["ROLECALL_SWEEP_S"] == "default"


def test_an_empty_variable_is_none(tmp_path):
    assert load(tmp_path, REDIS_URL="", ROLECALL_TRIES="").tries == 3


def test_paths_are_taken_from_where_they_were_written(tmp_path):
    other = tmp_path / "配置"
    other.mkdir()
    (other / "my.toml").write_text("roles = ['角色', '/abs']\ndata = '../data'\n", encoding="utf-8")
    settings = load(tmp_path, ROLECALL_CONFIG="配置/my.toml", ROLECALL_SKILLS="a:./b/:")
    assert settings.roles_path == (other / "角色", Path("/abs"))
    assert settings.skills_path == (tmp_path / "a", tmp_path / "b")
    assert settings.data_dir == tmp_path / "data"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("REDIS_URL", "localhost:6379", "redis, rediss"),
        ("REDIS_URL", "redis://", "names no server"),
        ("REDIS_URL", "redis://host:port", "no address"),
        ("ROLECALL_PREFIX", "a{b}", "no prefix"),
        ("ROLECALL_BEAT_S", "soon", "no number"),
        ("ROLECALL_BEAT_S", "0", "more than 0"),
        ("ROLECALL_BEAT_S", "nan", "finite"),
        ("ROLECALL_BEAT_S", "inf", "finite"),
        ("ROLECALL_TRIES", "0", "between 1"),
        ("ROLECALL_TRIES", "2.5", "whole number"),
        ("ROLECALL_TRIES", "三", "whole number"),
        ("ROLECALL_RETRY_DELAYS_S", "30,-1", "waiting times"),
        ("ROLECALL_RETRY_DELAYS_S", "30;60", "no number"),
        ("ROLECALL_LOST_POLICY", "panic", "reassign, hold"),
        ("ROLECALL_METRICS_PORT", "70000", "65535"),
        ("ROLECALL_DETAIL_MAX_BYTES", "12", "between 1024"),
        ("ROLECALL_LANG", "德语", "en, zh"),
        ("ROLECALL_CRASH_AT", "worker.before_clam", "worker.before_claim"),
        ("ROLECALL_CRASH_AT", "worker.before_claim#0", "from 1 on"),
        ("OPENAI_BASE_URL", "127.0.0.1:8080", "http"),
        ("ROLECALL_NO_MODEL", "perhaps", "neither yes nor no"),
        ("ROLECALL_DATA", "a\0b", "no path"),
    ],
)
def test_a_wrong_value_is_named_with_its_mend(tmp_path, name, value, says):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, **{name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert says in message
    assert caught.value.mend
    assert "\n" not in message


def test_a_wrong_value_in_the_file_names_the_file(tmp_path):
    with pytest.raises(ConfigError, match=re.escape(f"{tmp_path}/rolecall.toml: tries=True")):
        load(tmp_path, "tries = true\n")


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("beat = 3\n", "did you mean 'beat_s'"),
        ("ROLECALL_BEAT_S = 3\n", "did you mean 'beat_s'"),
        ("zzz = 3\n", "known: "),
        ("beat_s = \n", "line 1"),
        ("models = 3\n", "[[models]]"),
        ("[[models]]\nmodel = 'm'\n", "number 1: key = None"),
        ("[[models]]\nkey = 'a'\n[[models]]\nkey = 'a'\n", "two models have the key 'a'"),
        ("[[models]]\nkey = 'a'\nprize = 3\n", "unknown key 'prize'"),
        ("[[models]]\nkey = 'a'\ncontext_window = 0\n", "context_window = 0"),
        ("[[models]]\nkey = 'a'\nprice_input = -1\n", "price_input = -1"),
        ("[[models]]\nkey = 'a'\nbase_url = 'nowhere'\n", "base_url = 'nowhere'"),
        ("[[models]]\nkey = 'a'\nthinking = true\n", "thinking = True is no table"),
        ("[[models]]\nkey = 'a'\nmodel = 3\n", "model = 3"),
    ],
)
def test_a_file_that_says_what_nobody_knows_is_refused(tmp_path, toml, says):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, toml)
    assert says in str(caught.value)
    assert caught.value.mend


def test_a_file_with_bytes_that_are_no_utf8_is_refused(tmp_path):
    (tmp_path / "rolecall.toml").write_bytes(b"lang = '\xff'\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(tmp_path)


def test_a_named_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"'gone\.toml': there is no such file"):
        load(tmp_path, ROLECALL_CONFIG="gone.toml")


def test_values_that_contradict_each_other(tmp_path):
    with pytest.raises(ConfigError, match=r"ROLECALL_DEAD_S=5 is not more than ROLECALL_BEAT_S=5"):
        load(tmp_path, ROLECALL_DEAD_S="5")
    with pytest.raises(ConfigError, match=r"ROLECALL_LOST_S=60"):
        load(tmp_path, ROLECALL_LOST_S="60")


def test_with_only_an_endpoint_that_is_the_list(tmp_path):
    settings = load(tmp_path, OPENAI_BASE_URL="http://127.0.0.1:8080/v1/", OPENAI_API_KEY="sk-1")
    (entry,) = settings.models
    assert (entry.key, entry.model, entry.base_url, entry.api_key) == (
        "default",
        "",
        "http://127.0.0.1:8080/v1",
        "sk-1",
    )
    assert entry.context_window == 128_000


def test_a_key_alone_calls_nobody(tmp_path):
    assert load(tmp_path, OPENAI_API_KEY="sk-1").models == ()


def test_models_from_the_file(tmp_path):
    toml = """
    [[models]]
    key = "big"
    model = "通用-72b"
    base_url = "https://models.example/v1"
    api_key_env = "BIG_KEY"
    thinking = { enable_thinking = true }
    requests_per_minute = 60
    price_output = 2.5
    [[models]]
    key = "small"
    """
    settings = load(tmp_path, toml, BIG_KEY="sk-big", OPENAI_API_KEY="sk-own", OPENAI_BASE_URL="http://localhost:1/v1")
    big, small = settings.models
    assert (big.model, big.api_key, big.thinking) == ("通用-72b", "sk-big", {"enable_thinking": True})
    assert (big.requests_per_minute, big.price_output, big.price_input) == (60, 2.5, None)
    assert (small.base_url, small.api_key) == ("http://localhost:1/v1", "sk-own")
    assert "sk-" not in repr(settings)


def test_which_model_a_key_means(tmp_path):
    models = load(tmp_path, "[[models]]\nkey='a'\n[[models]]\nkey='b'\n").models
    assert find_model(models, "b") == (models[1], None)
    assert find_model(models, "") == (models[0], None)
    entry, warning = find_model(models, "c")
    assert entry is models[0]
    assert warning is not None
    assert "'c'" in warning
    assert find_model((), "c") == (None, None)


def test_nothing_secret_is_shown(tmp_path):
    settings = load(
        tmp_path, REDIS_URL="redis://:s3cret@10.0.0.1:6379/0", OPENAI_API_KEY="sk-1", OPENAI_BASE_URL="http://u:pw@h/v1"
    )
    shown = repr(settings.shown()) + repr(settings)
    for secret in ("s3cret", "sk-1", "pw@"):
        assert secret not in shown
    values = {name: value for name, value, _ in settings.shown()}
    assert values["REDIS_URL"] == "redis://:***@10.0.0.1:6379/0"
    assert values["OPENAI_API_KEY"] == "***"
    assert values["ROLECALL_RETRY_DELAYS_S"] == "30,60"
    assert values["ROLECALL_METRICS_PORT"] == "off"
    assert values["models.default"].startswith("the first listed at http://u:***@h/v1")


def test_a_refused_address_does_not_show_its_password(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, REDIS_URL="http://:s3cret@host:1")
    assert "s3cret" not in str(caught.value)
    assert "***" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:8080/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://LOCALHOST.:1", True),
        ("http://api.localhost/v1", True),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1.example.com", False),
        ("https://models.example/v1", False),
        ("http://0.0.0.0:80", False),
        ("", False),
    ],
)
def test_what_is_on_this_machine(url, loopback):
    assert is_loopback(url) is loopback


def test_with_the_switch_on_only_this_machine_may_be_called(tmp_path):
    strict = load(tmp_path, ROLECALL_NO_MODEL="1")
    strict.allow_endpoint("http://127.0.0.1:1/v1")
    for url in ("https://models.example/v1", None):
        with pytest.raises(ConfigError, match="not on this machine"):
            strict.allow_endpoint(url)
    load(tmp_path).allow_endpoint("https://models.example/v1")


def test_hiding_leaves_an_address_without_a_password_alone():
    assert hide_password("redis://host:1/0") == "redis://host:1/0"
    assert hide_password("redis://user:a@b@host:1") == "redis://user:***@host:1"
    assert hide_password("https://token@host/v1") == "https://***@host/v1"


def test_importing_the_settings_is_cheap():
    heavy = ("redis", "openai", "pydantic", "prometheus_client", "httpx", "rich", "arq")
    code = f"import sys, protocol.kit.settings; print([name for name in {heavy!r} if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
