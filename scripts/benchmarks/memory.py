"""The most memory that this process has had."""

import re
import resource
import sys
from pathlib import Path


def peak_rss_bytes() -> int:
    """Return the peak of the resident set.

    Linux's getrusage counts what the parent had when it forked, which may be more: its /proc does not.
    """
    status = Path("/proc/self/status")
    if status.exists():
        match = re.search(r"VmHWM:\s*(\d+) kB", status.read_text())
        assert match is not None, "Linux tells its peaks"
        return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
