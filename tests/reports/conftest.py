"""Fixtures of the reports' tests."""

pytest_plugins = ["tests.browser"]
