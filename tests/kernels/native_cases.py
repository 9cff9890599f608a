"""What the C kernels are tried on."""

import torch

from kernels.score_rules import ScoreRules
from tests.kernels.cases import LAYOUTS, Heads, SequenceLayout

ROUNDING = 2.0**-8  # of a bfloat16, relative; two that are rounded to different sides are twice as far apart
HEADS = {
    "mha-32": Heads(4, 4, 32),
    "mha-96": Heads(2, 2, 96),
    "gqa-64": Heads(9, 3, 64),
    "gqa-5-64": Heads(10, 2, 64),
    "mqa-128": Heads(32, 1, 128),
    "gqa-160": Heads(4, 2, 160),
    "mha-256": Heads(2, 2, 256),
}
NATIVE_LAYOUTS = LAYOUTS | {
    "drafts": (
        SequenceLayout(70, 5),
        SequenceLayout(0, 3),
        *(SequenceLayout(130 + n, 1 + n, (("document", 128),)) for n in range(4)),
        SequenceLayout(15, 8),
    ),
    "long chunk": (SequenceLayout(75, 300), SequenceLayout(64, 1)),
}
RULES = {
    "window-1": ScoreRules(0.17, window=1),
    "window-20": ScoreRules(0.17, window=20),
    "window-100": ScoreRules(0.17, window=100),
    "softcap": ScoreRules(0.5, softcap=3.0),
    "sinks": ScoreRules(0.17, sinks=torch.linspace(-2.0, 3.0, 9)),
    "slopes": ScoreRules(0.17, slopes=torch.logspace(-0.5, -8, 9, base=2.0)),
    "all": ScoreRules(
        0.5,
        window=33,
        softcap=5.0,
        sinks=torch.linspace(3.0, -2.0, 9),
        slopes=torch.logspace(-1, -9, 9, base=2.0),
    ),
}
