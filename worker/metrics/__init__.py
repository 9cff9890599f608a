"""What Prometheus reads: a worker's figures, and the fleet's. docs/metrics.md lists them."""
