"""The runner: one claimed task -> one outcome, by the role's executor.

Guarantees: whatever a turn raises becomes an outcome here and nowhere else (cancellation is passed on); what decides
between a retry and a block is the error's own attribute. Never claims, delivers or acknowledges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import FenceLost, RolecallError, StoreError, TaskError
from protocol.keys import Keys
from protocol.kit.logs import get_log
from protocol.kit.metrics import Metrics
from protocol.kit.settings import Settings
from protocol.kit.tracing import NoTracing, Tracing
from protocol.ports import Dispatch, Dropped, Failed, Outcome, Runner, TurnFence
from protocol.stores.client import Client
from workers.rolesource import RoleSource

log = get_log(__name__)


@dataclass(frozen=True)
class RunnerParts:
    """What a runner is built from."""

    settings: Settings
    source: RoleSource
    client: Client
    keys: Keys
    metrics: Metrics
    url: str
    draining: Callable[[], bool] = lambda: False
    tracing: Tracing = NoTracing()  # noqa: RUF009 - it has no state


def make_runner(parts: RunnerParts) -> Runner:
    """The runner of a role: its executor, under the one broad catch."""
    from workers.traced import traced_runner

    if parts.source.role.executor == "skill":
        from workers.skillrun import skill_runner

        return traced_runner(guarded(skill_runner(parts)), parts.tracing)
    from workers.agentrun import agent_runner

    return traced_runner(guarded(agent_runner(parts)), parts.tracing)


def guarded(runner: Runner) -> Runner:
    """``runner`` with every exception made an outcome: the one place that catches broadly."""

    async def run(dispatch: Dispatch, fence: TurnFence) -> Outcome:
        try:
            return await runner(dispatch, fence)
        except asyncio.CancelledError:
            raise
        except FenceLost as lost:
            return Dropped(str(lost))
        except TaskError as error:
            return Failed(error.kind, str(error), error.retryable, error.retry_after_s)
        except StoreError as error:
            return Failed("store", str(error), error.retryable)
        except RolecallError as error:
            return Failed("refused", str(error), retryable=False)
        except Exception as error:  # noqa: BLE001 - the top of the runner: a bug in one turn must not end the worker
            log.error("a turn raised", error=error, task=dispatch.task, attempt=dispatch.attempt)
            return Failed("bug", f"{type(error).__name__}: {error}", retryable=True)

    return run
