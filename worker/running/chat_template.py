"""A model's chat template, rendered in a process of its own. None comes from a job, but what it renders does.

A template is a program: one operation of it (a sort, a comparison of lists that hold lists, a product of large numbers)
may take any time and memory, and hold the interpreter meanwhile. So its bounds are the kernel's.
"""

from typing import Any

from worker.confined import MIB, Confined, NoAnswer

CPU_SECONDS = 2.0  # of the processor, for one rendering
MEMORY_BYTES = 1024 * MIB
WALL_SECONDS = 120.0


class TemplateFails(Exception):
    """A template that does not render a conversation, in a line for people."""


class ChatTemplates:
    """Renders a model's templates. For one thread."""

    def __init__(self) -> None:
        self.process = Confined("worker.running.template_process", MEMORY_BYTES, CPU_SECONDS, WALL_SECONDS)

    def render(self, source: str, **variables: Any) -> str:
        """Return the text of a template. Raises TemplateFails."""
        try:
            answer = self.process.ask({"source": source, "variables": variables})
        except NoAnswer as error:
            raise TemplateFails(str(error)) from None
        if "problem" in answer:
            raise TemplateFails(answer["problem"])
        text: str = answer["text"]
        return text
