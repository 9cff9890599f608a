"""What the process of test_confined.py answers with."""

import os
import signal
from collections.abc import Mapping
from typing import Any


def answer(wanted: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """Do what is asked for."""
    match wanted["do"]:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "take memory":
            bytearray(1 << 40)
        case "loop":
            while True:
                pass
        case "print":
            print("no answer")
    return {"wanted": wanted, "bytes": len(data), "process": os.getpid()}
