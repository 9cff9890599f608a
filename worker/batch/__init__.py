"""Batch files in OpenAI's format: a line a request, a line a result. Lines become jobs of one batch; SQL knows how far
it is, so that whoever is interrupted goes on where it was.
"""
