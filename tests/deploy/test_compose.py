"""The containers, checked by what their files say and by running the same commands as processes.

No container engine is needed: the commands, environments and health checks of ``compose.yaml`` are run as they stand,
against a server that starts late and is started by the file's own command.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import redis
import yaml

from protocol.kit.embedded import find_binary
from protocol.kit.rolefiles import load_roles
from tests.support import clean_environment, wait_until_sync

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if name != "redis"}
FLEET = {name: service for name, service in OURS.items() if "REDIS_URL" in service.get("environment", {})}
WORKERS = {name: service for name, service in FLEET.items() if service["command"][0] == "arq"}
PASSWORD = "geheim" + secrets.token_hex(8)


def in_force(text: str, env: dict[str, str]) -> str:
    """``${NAME:-default}`` and ``${NAME:?words}`` as Compose puts values in; ``$$`` is a dollar sign."""

    def value(found: re.Match[str]) -> str:
        if found["dollar"]:
            return "$"
        default = found["default"] if found["kind"] == "-" else None
        given = env.get(found["name"]) or default
        assert given is not None, f"{found['name']} has to be set: {found['default']}"
        return given

    return re.sub(r"(?P<dollar>\$\$)|\$\{(?P<name>\w+):(?P<kind>[-?])(?P<default>[^}]*)\}", value, text)


# --- what the files say -----------------------------------------------------------------------------------------------


def test_every_service_that_uses_the_server_waits_for_its_health():
    assert {"leader", "manager", *load_roles([ROOT / "examples/code-review/roles"], shipped=Path()).roles} <= set(FLEET)
    assert {name: service["depends_on"]["redis"] for name, service in FLEET.items()} == {
        name: {"condition": "service_healthy"} for name in FLEET
    }


def test_the_demo_s_roles_are_workers_under_their_module_names():
    roles = load_roles([ROOT / "examples/code-review/roles"], shipped=Path()).roles
    assert {name: service["command"] for name, service in WORKERS.items()} == {
        role.id: ["arq", f"workers.roles.{role.module_name}"] for role in roles.values()
    }
    assert SERVICES["finding-verifier"]["deploy"]["replicas"] == 2


def test_the_leader_and_the_manager_are_commands_of_ours():
    from coordinator.cli.lazy import COMMANDS

    for name in ("leader", "manager"):
        assert SERVICES[name]["command"] == ["rolecall", name]
        assert name in COMMANDS


@pytest.mark.parametrize("name", OURS)
def test_our_containers_run_one_image_without_rights(name):
    service = OURS[name]
    assert service["image"] == "rolecall"
    assert (DEPLOY / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).is_file()
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] > 0
    assert "user" not in service, "the image's own user, which is not root"
    assert "privileged" not in service


def test_no_service_opens_a_port_of_the_host():
    assert [name for name, service in SERVICES.items() if "ports" in service] == []


def test_every_process_serves_metrics_on_the_port_that_the_image_exposes():
    port = re.findall(r"^EXPOSE (\d+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    for service in FLEET.values():
        assert [service["environment"]["ROLECALL_METRICS_PORT"]] == service["expose"] == port


def test_a_container_has_longer_to_end_than_a_worker_takes_to_drain():
    from protocol.kit.settings_table import TABLE
    from workers.host import EXIT_AFTER_S

    grace_s = next(row.default for row in TABLE if row.name == "ROLECALL_GRACE_S")
    assert isinstance(grace_s, float)
    for service in WORKERS.values():
        assert float(service["stop_grace_period"].removesuffix("s")) > grace_s + EXIT_AFTER_S


def test_nothing_is_missing_where_the_password_is_and_a_missing_one_is_said():
    for service in FLEET.values():
        url = service["environment"]["REDIS_URL"]
        assert in_force(url, {"REDIS_PASSWORD": PASSWORD}) == f"redis://:{PASSWORD}@redis:6379/0"
        with pytest.raises(AssertionError, match=r"deploy/\.env"):
            in_force(url, {})
    whole = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert "--requirepass" not in whole, "an argument list is read by everybody"


def test_no_label_of_a_metric_is_an_id():
    from protocol.kit.metrics import LABELS, TABLE

    forbidden = {"task_id", "session_id", "trace_id", "record_id", "thread_id", "job_id", "message_id", "id", "worker"}
    assert forbidden.isdisjoint(LABELS)
    assert {label for row in TABLE for label in row.labels} <= set(LABELS)


def test_settings_that_the_file_names_are_settings():
    from protocol.kit.settings_table import TABLE

    known = {row.name for row in TABLE} | {"TARGET"}
    for name, service in FLEET.items():
        assert set(service["environment"]) <= known, name


def test_what_the_stand_in_serves_is_what_its_worker_asks():
    port = SERVICES["offline-model"]["command"][-1]
    assert SERVICES["offline-model"]["command"][:3] == ["python", "-m", "workers.offline"]
    assert SERVICES["offline-model"]["network_mode"] == "service:code-reviewer"
    given = SERVICES["code-reviewer"]["environment"]["OPENAI_BASE_URL"]
    assert in_force(given, {}) == f"http://127.0.0.1:{port}/v1"
    assert in_force(given, {"OPENAI_BASE_URL": "http://模型/v1"}) == "http://模型/v1"


def test_the_image_is_built_from_files_that_are_there_and_runs_as_nobody_special():
    lines = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == set(copied)
    users = [line.split()[1] for line in lines if line.startswith("USER ")]
    assert users
    assert users[-1].split(":")[0] not in ("root", "0")
    assert [line for line in lines if line.startswith("FROM ") and ":latest" in line] == []
    assert "--constraint constraints.txt" in "\n".join(lines)


# --- the server -------------------------------------------------------------------------------------------------------


def test_the_server_s_file_keeps_what_is_written_and_refuses_when_full():
    text = (DEPLOY / "redis" / "redis.conf").read_text(encoding="utf-8")
    said = dict(line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#"))
    assert said["maxmemory-policy"] == "noeviction"
    assert said["appendonly"] == "yes"
    assert said["appendfsync"] == "everysec"
    assert "requirepass" not in said
    assert any(mount.startswith("./redis/redis.conf:") for mount in SERVICES["redis"]["volumes"])
    assert any(mount.endswith(f":{said['dir']}") for mount in SERVICES["redis"]["volumes"])


@pytest.mark.parametrize(
    ("reply", "code", "healthy"),
    [
        ("PONG", 0, True),
        ("LOADING Redis is loading the dataset in memory", 0, False),
        ("NOAUTH Authentication required.", 0, False),
        ("(error) ERR PONG is not what this is", 0, False),
        ("", 1, False),
    ],
)
def test_only_pong_is_health(tmp_path, reply, code, healthy):
    client = tmp_path / "redis-cli"
    client.write_text(f'#!/bin/sh\n[ "$REDISCLI_AUTH" = "{PASSWORD}" ] || exit 9\n[ "$*" = ping ] || exit 9\n'
                      f'echo "{reply}"\nexit {code}\n')  # fmt: skip
    client.chmod(0o755)
    kind, test = SERVICES["redis"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "REDIS_PASSWORD": PASSWORD}
    ended = subprocess.run(["sh", "-c", in_force(test, env)], env=env, capture_output=True, check=False)
    assert (ended.returncode == 0) is healthy


# --- the same commands as processes -----------------------------------------------------------------------------------


class Stack:
    """Services of the file as processes. Their server is at a port of ours instead of the host ``redis``."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "redis-server").symlink_to(find_binary())
        self.prefix = prefix
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def env(self, name: str) -> dict[str, str]:
        values = {"REDIS_PASSWORD": PASSWORD, "CODE_DIR": str(self.folder)}
        given = {key: in_force(str(value), values) for key, value in SERVICES[name].get("environment", {}).items()}
        given = {key: value.replace("/app/", f"{ROOT}/") for key, value in given.items()}
        if "REDIS_URL" in given:
            given |= {
                "REDIS_URL": given["REDIS_URL"].replace("@redis:6379", f"@127.0.0.1:{self.port}"),
                "ROLECALL_METRICS_PORT": "0",
                "ROLECALL_PREFIX": self.prefix,
                "ROLECALL_DATA": str(self.folder / "data"),
                "ROLECALL_BEAT_S": "0.2",
                "ROLECALL_DEAD_S": "5",
            }
        path = os.pathsep.join((str(self.bin), str(Path(sys.executable).parent), os.environ["PATH"]))
        return clean_environment(os.environ, {**given, "PATH": path, "PYTHONPATH": str(ROOT)}.items())

    def start(self, name: str) -> None:
        """Start a service's own command."""
        command = [in_force(word, {}) for word in SERVICES[name]["command"]]
        if name == "redis":
            conf = self.folder / "redis.conf"
            text = (DEPLOY / "redis" / "redis.conf").read_text(encoding="utf-8")
            own = f"\nport {self.port}\nbind 127.0.0.1\n"
            conf.write_text(text.replace("dir /data", f"dir {self.folder}") + own, encoding="utf-8")
            command = [word.replace("/etc/rolecall/redis.conf", str(conf)) for word in command]
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running[name] = subprocess.Popen(
                command, env=self.env(name), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip

    def waits(self, name: str) -> bool:
        """Whether the process said that its server is not there."""
        said = (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "the store is not there yet" in said or "store_away" in said

    def healthy(self, name: str) -> bool:
        """The service's own health check."""
        kind, *command = SERVICES[name]["healthcheck"]["test"]
        assert kind == "CMD"
        ended = subprocess.run(
            [*command[:1], *(word.replace("deploy/", f"{DEPLOY}/") for word in command[1:])],
            env=self.env(name), cwd=self.folder, capture_output=True, check=False, timeout=30,
        )  # fmt: skip
        return ended.returncode == 0

    def stop(self) -> dict[str, int]:
        """SIGTERM to all but the server, then to the server; exit codes by service."""
        last = [name for name in ("redis",) if name in self.running]
        for names in ([name for name in self.running if name != "redis"], last):
            for name in names:
                self.running[name].send_signal(signal.SIGTERM)
            for name in names:
                self.running[name].wait(30)
        return {name: process.returncode for name, process in self.running.items()}

    def kill(self) -> None:
        for process in self.running.values():
            if process.poll() is None:
                process.kill()
                process.wait()


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    made = Stack(tmp_path, f"rct{secrets.token_hex(4)}:")
    yield made
    made.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_the_server_starts_by_the_file_s_own_command(stack):
    stack.start("redis")
    client = redis.Redis(port=stack.port, password=PASSWORD, decode_responses=True)
    other = redis.Redis(port=stack.port)
    try:
        wait_until_sync(lambda: _answers(client), "the server answers")
        in_use = cast("dict[str, str]", client.config_get("*"))
        assert (in_use["maxmemory-policy"], in_use["maxmemory"]) == ("noeviction", str(2 * 1024**3))
        assert (in_use["appendonly"], in_use["appendfsync"], in_use["save"]) == ("yes", "everysec", "")
        with pytest.raises(redis.AuthenticationError):
            other.ping()
        arguments = Path(f"/proc/{stack.running['redis'].pid}/cmdline").read_bytes()
        assert b"redis-server" in arguments, "exec: the server itself gets the signals"
        assert PASSWORD.encode() not in arguments
    finally:
        client.close()
        other.close()
    assert stack.stop() == {"redis": 0}


def _answers(client: redis.Redis) -> bool:
    try:
        return bool(client.ping())
    except (redis.ConnectionError, redis.exceptions.BusyLoadingError):
        return False


@pytest.mark.slow
def test_what_starts_before_its_server_is_healthy_once_the_server_is_there(stack):
    names = ("leader", "manager", "bandit-scanner", "code-reviewer")
    for name in names:
        stack.start(name)
    for name in names:
        wait_until_sync(partial(stack.waits, name), f"{name} says that it waits", timeout=30)
    assert [name for name in names if stack.healthy(name)] == [], "nothing is healthy without a server"
    stack.start("redis")
    for name in names:
        wait_until_sync(partial(stack.healthy, name), f"{name} is healthy", timeout=60, every=0.2)
    assert [name for name in names if stack.running[name].poll() is not None] == [], "nobody had to start it again"
    assert stack.stop() == dict.fromkeys((*names, "redis"), 0)


@pytest.mark.slow
def test_the_stand_in_is_healthy(stack):
    stack.start("offline-model")
    wait_until_sync(lambda: stack.healthy("offline-model"), "the stand-in is healthy", timeout=20, every=0.1)
    stack.running["offline-model"].send_signal(signal.SIGTERM)
    stack.running["offline-model"].wait(10)
