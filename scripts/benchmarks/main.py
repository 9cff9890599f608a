"""`scripts/bench`: ratios against peers, measured side by side in one run."""

import click

from scripts.benchmarks.claims_bench import claims
from scripts.benchmarks.engine_bench import engine, run_one
from scripts.benchmarks.kernels_bench import kernels
from scripts.benchmarks.nll_bench import nll
from scripts.benchmarks.queue_bench import queue
from scripts.benchmarks.reports_bench import reports
from scripts.benchmarks.scheduler_bench import scheduler


@click.group()
def main() -> None:
    """Measure Pagemill against its peers."""


main.add_command(claims)
main.add_command(engine)
main.add_command(kernels)
main.add_command(nll)
main.add_command(queue)
main.add_command(reports)
main.add_command(run_one)
main.add_command(scheduler)


if __name__ == "__main__":
    main()
