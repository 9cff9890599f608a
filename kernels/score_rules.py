"""How attention scores become weights, where a model does more than scale them."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class ScoreRules:
    """Score = query . key * scale, then softcap, then slopes, then the mask, then the softmax (beside the sinks).

    A window of w lets a query see its own position and w - 1 before it. A softcap of c makes c * tanh(score / c) of a
    score (Gemma 2). A slope of m adds m * (key position - query position) to a score of its head's (ALiBi, Press et al.
    2022). A sink is one more score of a head's, whose weight goes nowhere (gpt-oss).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None  # [num_heads]
    slopes: Tensor | None = None  # [num_heads]
