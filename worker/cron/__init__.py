"""Schedules: what is submitted by itself, and when. SQL holds them; whichever scheduler leads turns slots into runs."""
