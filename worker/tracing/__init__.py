"""Traces of jobs for OpenTelemetry; nothing is imported or computed for them unless they are on. See docs/traces.md."""
