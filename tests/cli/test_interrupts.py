"""Interrupts that were lost are raised again."""

import os
import signal
from contextlib import suppress

import pytest

from worker.cli.interrupts import noted_interrupts


def test_a_lost_interrupt_is_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with noted_interrupts() as check:
        check()
        with suppress(KeyboardInterrupt):  # as Python does in a finalizer
            os.kill(os.getpid(), signal.SIGINT)
            signal.sigtimedwait([], 5.0)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before
