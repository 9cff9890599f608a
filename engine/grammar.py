"""What the engine needs of a grammar that confines an output. Whoever adds a request brings one; torch-free."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Grammar(Protocol):
    """A grammar beside one request. Its state follows the output tokens that it is shown."""

    def allowed(self, output_token_ids: Sequence[int]) -> NDArray[np.bool_]:
        """Return which tokens may come next, [vocab_size or fewer]; those beyond its length may not.

        Called with an output that is the one before and more; after a step that failed, also with one that shares only
        a beginning with it. Raises RequestError when it cannot be followed.
        """
