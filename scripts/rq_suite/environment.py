"""What the suite's processes tell each other: through environment variables, since RQ's tests start processes."""

from enum import StrEnum

ADDRESS_VARIABLE = "RQ_SUITE_ADDRESS"  # host:port of the server that stands in for RQ's default one
WORKER_VARIABLE = "RQ_SUITE_WORKER"
REPORT_VARIABLE = "RQ_SUITE_REPORT"  # the file to which results are written, a JSON object a line
DEFAULT_PORT = 6379  # where RQ's tests look for a server


class Which(StrEnum):
    """The worker under test."""

    PAGEMILL = "pagemill"
    STOCK = "stock"
