"""A job's conversation as chat templates read it."""

from typing import Any

from worker.jobs import PromptJob
from worker.tools import Message, arguments_of

Turn = dict[str, Any]


def turns_of(job: PromptJob) -> list[Turn]:
    """Return the turns of a job, its prompt's where it has no messages. A call's arguments are an object in them."""
    if job.messages is not None:
        names = {call.id: call.function.name for message in job.messages for call in message.tool_calls or ()}
        return [_turn(message, names) for message in job.messages]
    assert job.prompt is not None, "a job has a prompt or messages"
    turns: list[Turn] = [{"role": "user", "content": job.prompt}]
    return turns if job.system is None else [{"role": "system", "content": job.system}, *turns]


def without_calls(turns: list[Turn]) -> list[Turn]:
    """Return the turns as they were if nobody had called a tool."""
    return [{name: value for name, value in turn.items() if name != "tool_calls"} for turn in turns]


def without_results(turns: list[Turn]) -> list[Turn]:
    """Return the turns without what tools gave."""
    return [turn for turn in turns if turn["role"] != "tool"]


def _turn(message: Message, names: dict[str, str]) -> Turn:
    turn: Turn = {"role": message.role, "content": message.text}
    if message.tool_calls is not None:
        turn["tool_calls"] = [
            {
                "id": call.id,
                "type": call.type,
                "function": {"name": call.function.name, "arguments": arguments_of(call.function.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
        if message.tool_call_id in names:  # some templates say whose result it is
            turn["name"] = names[message.tool_call_id]
    return turn
