"""The settings of speculation: each is in use or refused."""

import pytest

from worker.errors import ConfigurationError
from worker.settings import resolve_settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"speculation": "draft"}, "draft_model is not set and speculation is 'draft'"),
        ({"draft_model": "small"}, "draft_model is 'small' and speculation is 'off'"),
        ({"speculation": "ngram", "draft_model": "small"}, "draft_model is 'small' and speculation is 'ngram'"),
        ({"speculation": "medusa"}, "speculation"),
        ({"max_draft_tokens": "0"}, "max_draft_tokens"),
        ({"max_draft_tokens": "65"}, "max_draft_tokens"),
    ],
)
def test_what_would_have_no_effect_is_refused(values: dict[str, str], message: str) -> None:
    environ = {f"PAGEMILL_{name.upper()}": value for name, value in values.items()}
    with pytest.raises(ConfigurationError, match=message) as caught:
        resolve_settings(environ=environ)
    assert "\n" not in str(caught.value)


def test_speculation_is_off_by_default() -> None:
    settings = resolve_settings(environ={}).settings
    assert (settings.speculation, settings.draft_model, settings.max_draft_tokens) == ("off", None, 8)
