"""When this process began: a worker's time counts from there, the imports before its first line of code included."""

import os
import time
from pathlib import Path

STARTTIME = 19  # field 22 of proc_pid_stat(5), counted from the third: ticks after the boot


def process_start() -> float:
    """Return when this process began, in seconds on the monotonic clock; where the system does not tell (it is not
    Linux), when this was called."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        since_boot = int(fields[STARTTIME]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - since_boot
    except (OSError, AttributeError):
        return time.monotonic()
    return time.monotonic() - age
