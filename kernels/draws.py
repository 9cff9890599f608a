"""What is drawn from which rows of logits."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws from rows of logits, each by its own rule. All on the logits' device; `[num_draws]` each.

    The rule: softmax(logits / temperature), cut by top-k, then top-p of what is left, then min-p, and one uniform
    number that chooses by inverse CDF, the likeliest token first.
    """

    rows: Tensor  # int64: the row that is drawn from
    temperatures: Tensor  # float64, above 0
    top_ks: Tensor  # int64, 0 for all
    top_ps: Tensor  # float64, above 0 and at most 1
    min_ps: Tensor  # float64, from 0 to 1
    uniforms: Tensor  # float64, in [0, 1)
