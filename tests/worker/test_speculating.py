"""Speculation through the worker: the same outputs, its figures in SQL; a draft model must match its model."""

from pathlib import Path
from typing import cast

import pytest
import redis
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from engine.engine import ModelIdentity
from engine.model_loader import LoadedModel
from engine.paged_model import PagedModel
from engine.speculation.prompt_lookup import PromptLookup
from tests.engine.fake_speculation import EagerSpeculation
from tests.worker.fakes import ENDLESS, ScriptedRunner, make_flow
from worker.client import submit
from worker.errors import ConfigurationError
from worker.running.speculating import check_vocabularies
from worker.sql.store import JobStore

NUM_TOKENS = 60
DRAFT_TOKENS = 5


def test_outputs_are_the_same_and_their_figures_say_how_they_came(
    connection: redis.Redis, sqlite_store: JobStore
) -> None:
    runner = ScriptedRunner()
    (job_id,) = submit(connection, [{"prompt": ENDLESS, "max_tokens": NUM_TOKENS}])
    speculator = EagerSpeculation(PromptLookup(), DRAFT_TOKENS)
    make_flow(connection, sqlite_store, runner, speculator=speculator).run(burst=True)
    job = sqlite_store.job(job_id)
    assert job is not None
    assert job.result is not None
    assert job.result.text == ("0123456789" * NUM_TOKENS)[:NUM_TOKENS]
    stats = job.stats
    assert stats is not None
    assert stats.drafted_tokens is not None
    assert stats.accepted_tokens is not None
    assert NUM_TOKENS / 2 < stats.accepted_tokens <= stats.drafted_tokens
    assert runner.steps <= NUM_TOKENS - stats.accepted_tokens + 1


def model_with(folder: Path, name: str, words: str) -> LoadedModel:
    """Return a model of which nothing but its tokenizer is looked at."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder / name)
    identity = ModelIdentity(name, len(words), frozenset())
    return LoadedModel(cast(PagedModel, None), identity, str(folder / name))


def test_draft_model_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    large, small = model_with(tmp_path, "large", "abcd"), model_with(tmp_path, "small", "abcd")
    check_vocabularies(small, large)
    other = model_with(tmp_path, "other", "abdc")
    with pytest.raises(ConfigurationError, match="draft_model: 'other' has another vocabulary than the model 'large'"):
        check_vocabularies(other, large)
