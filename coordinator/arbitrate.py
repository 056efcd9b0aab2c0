"""Which results count: verdicts first, then identical, conflicting and overlapping results. Code only, no judgement.

Guarantees: the answer depends on the set of deliveries and verdicts and on server order, never on the order in which
they are handed over. A rejected result is never kept. Whatever is not kept is listed with what was kept instead, or
with why nothing was. Never changes a result.

The order of the rules, each on what the one before left:

1. verdicts: the newest of each verifier counts, one's verdict on one's own work for nothing; verifiers that disagree
   make it ``partial`` (policy ``disagreement``: ``partial``, ``rejected`` or ``newest``);
2. rejected and empty results go;
3. conflict: of several tries at one question with different results the confirmed one stays, else the latest in server
   order (a longer try is no better try, so containment does not matter here);
4. identical results anywhere: one stays, the confirmed one first, else the latest;
5. overlap: a text that stands whole in a longer one goes, unless it is confirmed and the longer one is not: then both
   stay, and the overlap is listed all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from coordinator.deliveries import RANK, Delivery, MergeInputs, Status, Verdict, comparable, natural
from coordinator.overlaps import Text, containers
from protocol.errors import Refused
from protocol.record import Json, canonical

DISAGREEMENT: Final = ("partial", "rejected", "newest")


@dataclass(frozen=True)
class Conflict:
    """Tries at one question with different results: all of them, and the one that was kept."""

    tasks: tuple[str, ...]
    kept: str
    prefix: str
    why: str


@dataclass(frozen=True)
class Overlap:
    """Results that are the same, or that stand in another one. ``also_kept``: those that were kept beside it."""

    tasks: tuple[str, ...]
    type: Literal["identical", "overlap"]
    kept: str
    why: str
    also_kept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Arbitration:
    """What counts. Lists of tasks are in natural order of their ids."""

    deliveries: Mapping[str, Delivery]
    """By task, in server order."""
    verdicts: Mapping[str, tuple[Verdict, ...]]
    """The verdicts that count, by task; one a verifier."""
    status: Mapping[str, Status]
    kept: tuple[str, ...]
    """In server order."""
    deduped: Mapping[str, str]
    """Not kept since it stands in another one -> the task that was kept."""
    outvoted: Mapping[str, str]
    """Lost a conflict -> the task that was kept."""
    rejected: Mapping[str, str]
    """Never delivered -> why."""
    empty: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    overlaps: tuple[Overlap, ...]


def arbitrate(inputs: MergeInputs) -> Arbitration:
    """Apply the rules above. Raises Refused for a policy that nobody knows."""
    rule = disagreement(inputs.policy)
    deliveries = by_task(inputs.deliveries)
    verdicts = counting(inputs.verdicts, deliveries)
    status = {task: combine(verdicts.get(task, ()), rule) for task in deliveries}
    contents = {task: comparable(delivery.result) for task, delivery in deliveries.items()}
    empty = [task for task, (kind, _) in contents.items() if kind == "empty"]
    rejected = {task: _why_rejected(verdicts[task]) for task in deliveries if status[task] == "rejected"}
    place = {task: number for number, task in enumerate(deliveries)}

    conflicts: list[Conflict] = []
    outvoted: dict[str, str] = {}
    stay: list[str] = []
    for question, tasks in _questions(deliveries.values()).items():
        tries = [task for task in tasks if contents[task][0] != "empty"]
        _reject_repeats(tries, contents, status, rejected)
        alive = [task for task in tries if task not in rejected]
        if not alive:
            continue
        winners, conflict = _settle(question, tries, alive, contents, status, place)
        stay += winners
        if conflict:
            conflicts.append(conflict)
            outvoted |= {task: conflict.kept for task in alive if task not in winners}

    same, deduped, texts = _identical(stay, contents, status, place)
    overlaps = _contained(texts, status, same, deduped)
    return Arbitration(
        deliveries=deliveries,
        verdicts=verdicts,
        status=status,
        kept=tuple(sorted((task for task in stay if task not in deduped), key=place.__getitem__)),
        deduped={task: deduped[task] for task in sorted(deduped, key=natural)},
        outvoted={task: outvoted[task] for task in sorted(outvoted, key=natural)},
        rejected={task: rejected[task] for task in sorted(rejected, key=natural)},
        empty=tuple(sorted(empty, key=natural)),
        conflicts=tuple(sorted(conflicts, key=lambda c: natural(c.tasks[0]))),
        overlaps=tuple(sorted(overlaps, key=lambda o: (natural(o.tasks[0]), o.type, natural(o.kept)))),
    )


def disagreement(policy: Mapping[str, Json]) -> str:
    """The policy's word for verifiers that disagree."""
    word = policy.get("disagreement", DISAGREEMENT[0])
    if word not in DISAGREEMENT:
        raise Refused(
            f"policy.disagreement: {word!r} is none of {', '.join(DISAGREEMENT)}",
            reason="policy",
            path="policy.disagreement",
        )
    return str(word)


def counting(verdicts: Iterable[Verdict], deliveries: Mapping[str, Delivery]) -> dict[str, tuple[Verdict, ...]]:
    """The verdicts that count, by task: of each verifier the newest, none on one's own work; oldest first."""
    newest: dict[tuple[str, str], Verdict] = {}
    for verdict in verdicts:
        delivery = deliveries.get(verdict.task)
        if delivery is None or delivery.who == verdict.who:
            continue
        before = newest.get((verdict.task, verdict.who))
        if before is None or _age(verdict) > _age(before):
            newest[verdict.task, verdict.who] = verdict
    out: dict[str, list[Verdict]] = {}
    for verdict in sorted(newest.values(), key=_age):
        out.setdefault(verdict.task, []).append(verdict)
    return {task: tuple(found) for task, found in out.items()}


def combine(verdicts: Sequence[Verdict], rule: str, words: Sequence[str] | None = None) -> Status:
    """What verdicts of different verifiers (oldest first) amount to. ``words`` stand in for the verdicts' own: what
    each of them says of one item."""
    said = [v.verdict for v in verdicts] if words is None else list(words)
    if not said:
        return "unverified"
    if len(set(said)) == 1 or rule == "newest":
        return _status(said[-1])
    return "rejected" if rule == "rejected" and "rejected" in said else "partial"


def _status(word: str) -> Status:
    return "confirmed" if word == "confirmed" else "rejected" if word == "rejected" else "partial"


def _age(verdict: Verdict) -> tuple[Json, ...]:
    """Server order; where that is equal the harder verdict is the newer one, whoever hands them over first."""
    told = canonical([verdict.who, list(verdict.reasons), [dict(item) for item in verdict.items]])
    return verdict.order, RANK[verdict.verdict], told


def by_task(deliveries: Iterable[Delivery]) -> dict[str, Delivery]:
    """In server order; a task completes once, so of two deliveries the first one counts."""
    out: dict[str, Delivery] = {}
    for delivery in sorted(deliveries, key=lambda d: (d.order, natural(d.task), d.who)):
        out.setdefault(delivery.task, delivery)
    return out


def _why_rejected(verdicts: Sequence[Verdict]) -> str:
    against = [v for v in verdicts if v.verdict == "rejected"] or verdicts
    names = ", ".join(v.who for v in against)
    reasons = "; ".join(dict.fromkeys(reason for v in against for reason in v.reasons))
    return f"rejected by {names}: {reasons}" if reasons else f"rejected by {names}"


def _questions(deliveries: Iterable[Delivery]) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for delivery in deliveries:
        out.setdefault(delivery.question, []).append(delivery.task)
    return out


def _reject_repeats(
    tries: Sequence[str],
    contents: Mapping[str, tuple[str, str]],
    status: Mapping[str, Status],
    rejected: dict[str, str],
) -> None:
    """An answer that was rejected is no better when another try repeats it and nobody looked at that one."""
    refused = {contents[task]: task for task in reversed(tries) if task in rejected}
    for task in tries if refused else ():
        twin = refused.get(contents[task])
        if twin is not None and status[task] == "unverified":
            rejected[task] = f"the same result was rejected as {twin}"


def _settle(
    question: str,
    tries: Sequence[str],
    alive: Sequence[str],
    contents: Mapping[str, tuple[str, str]],
    status: Mapping[str, Status],
    place: Mapping[str, int],
) -> tuple[list[str], Conflict | None]:
    """The tries that give the answer which counts, and the conflict where there were different answers."""
    confirmed = [task for task in alive if status[task] == "confirmed"]
    winner = max(confirmed or alive, key=place.__getitem__)
    winners = [task for task in alive if contents[task] == contents[winner]]
    if all(contents[task] == contents[winner] for task in tries):
        return winners, None
    kept = _best(winners, status, place)
    rivals = {contents[task] for task in confirmed} if confirmed else {contents[task] for task in alive}
    if len(winners) == len(alive):
        why = "the only result that was not rejected"
    elif confirmed:
        why = "confirmed" if len(rivals) == 1 else "the latest of those that are confirmed"
    else:
        why = "the latest, none is confirmed"
    against = [task for task in tries if task in winners or contents[task] != contents[winner]]
    return winners, Conflict(tuple(sorted(against, key=natural)), kept, question, why)


def _best(tasks: Iterable[str], status: Mapping[str, Status], place: Mapping[str, int]) -> str:
    """Of identical results: the best verdict first, then the latest."""
    return min(tasks, key=lambda task: (RANK[status[task]], -place[task]))


def _identical(
    stay: Iterable[str],
    contents: Mapping[str, tuple[str, str]],
    status: Mapping[str, Status],
    place: Mapping[str, int],
) -> tuple[list[Overlap], dict[str, str], dict[str, str]]:
    """Identical results: what is listed, what goes into which, and the texts that stay (by task)."""
    groups: dict[tuple[str, str], list[str]] = {}
    for task in stay:
        groups.setdefault(contents[task], []).append(task)
    found: list[Overlap] = []
    deduped: dict[str, str] = {}
    texts: dict[str, str] = {}
    for (kind, text), tasks in groups.items():
        kept = _best(tasks, status, place)
        if kind == "text":
            texts[kept] = text
        if len(tasks) > 1:
            why = "the same result, " + ("confirmed" if status[kept] == "confirmed" else "none is confirmed")
            found.append(Overlap(tuple(sorted(tasks, key=natural)), "identical", kept, why))
            deduped |= {task: kept for task in tasks if task != kept}
    return found, deduped, texts


def _contained(
    texts: Mapping[str, str], status: Mapping[str, Status], same: list[Overlap], deduped: dict[str, str]
) -> list[Overlap]:
    """All overlaps, with one entry for each text that takes others in: what was identical to one of those stands in
    that entry too, so that a chain collapses once. ``deduped`` grows.

    Texts alone are looked at: that one object's JSON stands in another's is an accident of how it is written (``1`` in
    ``[10, 21]``), not a sign that the other one says more; lists are merged by their items.
    """
    listed = sorted(texts, key=natural)
    sure = [status[task] == "confirmed" for task in listed]
    inside = containers([Text(texts[task].encode(), good) for task, good in zip(listed, sure, strict=True)])
    taken: dict[str, list[str]] = {}
    beside: dict[str, list[str]] = {}
    for number, place in inside.items():
        part, whole = listed[number], listed[place]
        if sure[number] and not sure[place]:
            beside.setdefault(part, []).append(whole)
        else:
            taken.setdefault(whole, []).append(part)
            deduped[part] = whole
    copies = {entry.kept: entry.tasks for entry in same}
    deduped |= {task: deduped[kept] for task, kept in deduped.items() if kept in deduped}
    found = [entry for entry in same if entry.kept not in deduped]
    for whole, parts in taken.items():
        why = "the more complete one" + (", confirmed" if status[whole] == "confirmed" else "")
        tasks = {whole, *(task for part in parts for task in copies.get(part, (part,)))}
        found.append(Overlap(tuple(sorted(tasks, key=natural)), "overlap", whole, why))
    for part, wholes in beside.items():
        why = "confirmed: a longer result that is not confirmed does not replace it"
        also = tuple(sorted(wholes, key=natural))
        found.append(Overlap(tuple(sorted((part, *also), key=natural)), "overlap", part, why, also))
    return found
