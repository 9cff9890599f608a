"""How an engine's steps go on while another thread of its process works."""

from collections.abc import Callable
from threading import Thread

from engine.request import SamplingParams
from tests.engine.fakes import make_harness


def steps_beside(work: Callable[[], object]) -> int:
    """Return the steps that an engine takes while `work` runs: none, if that holds the interpreter all the time."""
    harness, steps = make_harness(), 0
    thread = Thread(target=work)
    thread.start()
    while thread.is_alive():
        if not harness.engine.has_work:
            harness.add(str(steps), [1, 2, 3], SamplingParams(max_tokens=16))
        harness.step()
        steps += 1
    thread.join()
    return steps
