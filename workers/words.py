"""Every word that agents are told by code, in one table per language (``ROLECALL_LANG``).

Guarantees: both languages have the same keys. Content of people and agents is never in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from protocol.envelope import WORDS as ENVELOPE
from protocol.envelope import Lang as Lang

_EN: Final[Mapping[str, str]] = {
    **ENVELOPE["en"],
    "goal": "Goal of the session:",
    "prompt": "Your task:",
    "input": "Input:",
    "verifies": "You check the work of task {task}. Take none of its claims for granted; use a method of your own.",
    "result": "Result of {task}:",
    "schema": "Deliver one JSON object, and nothing else, that fits this schema:",
    "cut": "… ({left} characters are left out here; the whole is in artifact {artifact})",
    "cut_short": "… ({left} characters are left out here)",
    "truncated": "Your answer was cut off at the token limit and was not taken. Answer again, shorter.",
    "empty": "Your answer was empty and was not taken. Deliver the result of your task, or call a tool.",
    "refused": "Your delivery was refused and was not taken: {why}. Deliver it again as asked.",
    "again": "The last try ended without a delivery ({why}). Go on with your task.",
    "evidence": "You have delivered without one finished tool call that did the work. "
    "Do the work with the tools, then deliver.",
    "loop": "You have called {tool} {n} times with the same arguments. It was not run again: its answer would be "
    "the same. Go on in another way, or deliver what you have.",
    "broken_call": "This call was not run: {why}. Call it again with a JSON object as arguments.",
    "unknown_tool": "This call was not run: there is no tool {tool!r}. Known tools: {known}.",
    "not_run": "This call was not run: the turn that made it ended before.",
    "stopped": "This call was stopped before it ended. What it did until then is not known.",
    "in_doubt": "The tool {tool} was called with {args}, and its worker died before the result was saved: nobody "
    "knows whether it ran, and it is not marked safe to repeat. Answer 'repeat' to run it (again), or give its result.",
    "repeat": "repeat",
    "compacted": "Earlier messages were left out to fit the model's window. What was done so far, in short:",
}
_ZH: Final[Mapping[str, str]] = {
    **ENVELOPE["zh"],
    "goal": "会话目标：",
    "prompt": "你的任务：",
    "input": "输入：",
    "verifies": "你要检查任务 {task} 的工作。不要轻信其中任何说法，用你自己的方法核实。",
    "result": "{task} 的结果：",
    "schema": "只交付一个符合下列模式的 JSON 对象，不要有其他内容：",
    "cut": "……（此处省略 {left} 个字符，全文在制品 {artifact} 中）",
    "cut_short": "……（此处省略 {left} 个字符）",
    "truncated": "你的回答因长度上限被截断，未被采纳。请更简短地重新回答。",
    "empty": "你的回答是空的，未被采纳。请交付任务结果，或调用工具。",
    "refused": "你的交付被拒绝，未被采纳：{why}。请按要求重新交付。",
    "again": "上一次尝试没有交付就结束了（{why}）。请继续完成你的任务。",
    "evidence": "你没有完成任何一次实际做事的工具调用就交付了。请先用工具完成工作，再交付。",
    "loop": "你已用相同的参数调用 {tool} {n} 次。这次没有再运行：结果会是一样的。请换一种方式继续，或交付已有的内容。",
    "broken_call": "这次调用没有运行：{why}。请用一个 JSON 对象作为参数重新调用。",
    "unknown_tool": "这次调用没有运行：没有名为 {tool!r} 的工具。已知工具：{known}。",
    "not_run": "这次调用没有运行：发起它的轮次已先结束。",
    "stopped": "这次调用在结束前被停止。在此之前它做了什么，不得而知。",
    "in_doubt": "工具 {tool} 以参数 {args} 被调用，但它的工作进程在结果保存前就死了："
    "没人知道它是否已运行，而它没有被标记为可安全重复。请回答“重复”以（再次）运行，或直接给出它的结果。",
    "repeat": "重复",
    "compacted": "为适应模型的窗口，较早的消息已省略。到目前为止所做的事简述如下：",
}
WORDS: Final[Mapping[Lang, Mapping[str, str]]] = {"en": _EN, "zh": _ZH}


def say(lang: Lang, key: str, **values: object) -> str:
    """The words for ``key`` with its places filled."""
    return WORDS[lang][key].format(**values) if values else WORDS[lang][key]
