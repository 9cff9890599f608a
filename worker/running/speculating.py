"""What a worker drafts with, as its settings say."""

import time
from collections.abc import Callable

from engine.config import EngineConfig
from engine.model_loader import LoadedModel
from engine.model_runner import ModelRunner
from engine.speculation.draft_model import DraftModel
from engine.speculation.prompt_lookup import PromptLookup
from engine.speculation.speculation import Speculation
from engine.stepping import Runner
from worker.errors import ConfigurationError
from worker.running.sizing import draft_config
from worker.running.tokenizing import Tokenizer
from worker.settings_model import Settings


def check_vocabularies(draft: LoadedModel, model: LoadedModel) -> None:
    """Raise ConfigurationError unless both models' tokenizers give a token the same id."""
    if Tokenizer(draft.folder).vocabulary() != Tokenizer(model.folder).vocabulary():
        raise ConfigurationError(
            f"draft_model: {draft.identity.name!r} has another vocabulary than the model {model.identity.name!r}; "
            "a draft model must share its model's tokenizer"
        )


def speculation(
    settings: Settings,
    config: EngineConfig,
    model: LoadedModel,
    draft: LoadedModel | None,
    watched: Callable[[Runner], Runner],
) -> Speculation | None:
    """Return what proposes tokens, None where nothing is drafted.

    `watched` returns a runner whose steps are noted, in case one of them ends the process.
    """
    if settings.speculation == "off":
        return None
    if draft is None:
        return Speculation(PromptLookup(), settings.max_draft_tokens)
    own = draft_config(config, draft.model.max_model_len, draft.model.windows)
    runner = watched(ModelRunner(draft.model, own.num_blocks, own.block_size, cuda_graphs=settings.cuda_graphs))
    drafter = DraftModel(runner, own, draft.identity.name, model.identity.vocab_size, time.monotonic)
    return Speculation(drafter, settings.max_draft_tokens)
