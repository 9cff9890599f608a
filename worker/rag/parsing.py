"""Parsing in a process of its own: a file that breaks its parser, or keeps it busy, costs that file and no other."""

from worker.confined import Confined, NoAnswer
from worker.errors import ConfigurationError
from worker.rag.reading import Format, UnreadableDocument

MEMORY_BYTES = 2 << 30
CPU_SECONDS = 60.0
WALL_SECONDS = 600.0


class Parser:
    """Parses pdf and html files. For one thread. Whoever uses it closes it."""

    def __init__(
        self,
        memory_bytes: int = MEMORY_BYTES,
        cpu_seconds: float = CPU_SECONDS,
        wall_seconds: float = WALL_SECONDS,
    ) -> None:
        self.process = Confined("worker.rag.parser_process", memory_bytes, cpu_seconds, wall_seconds)

    def parse(self, data: bytes, form: Format, encoding: str) -> tuple[str, str]:
        """Return the title, which may be empty, and the text of a file.

        Raises UnreadableDocument for one that has none, or needs more than it may have, and ConfigurationError where a
        package is missing.
        """
        try:
            answer = self.process.ask({"form": form.value, "encoding": encoding}, data)
        except NoAnswer as error:
            raise UnreadableDocument(f"cannot be parsed: {error}") from None
        if "missing" in answer:
            raise ConfigurationError(answer["missing"])
        if "problem" in answer:
            raise UnreadableDocument(answer["problem"])
        return answer["title"], answer["text"]

    def close(self) -> None:
        """End the process; the next file starts another."""
        self.process.close()
