"""OpenAI's wire format: request bodies to jobs, results to response objects, failures to error objects.

Everything here is plain data in, plain data out. It imports neither torch nor SQLAlchemy, and does no I/O.
"""
