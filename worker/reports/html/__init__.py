"""The reports as one HTML file with charts: no network, no library, harmless whatever a job is called."""
