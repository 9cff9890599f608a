"""Roll-ups: hours counted once, so that a report over millions of jobs reads thousands of rows.

What is counted of a job, and how counts add up, is said once (`measures`, `sources`): rolling up and reports share it.
"""
