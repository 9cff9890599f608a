"""The views that people read in SQL: their definitions, and how a database gets them."""

from worker.sql.views.definitions import View, views
from worker.sql.views.installing import create_views, differing_view, drop_views

__all__ = ["View", "create_views", "differing_view", "drop_views", "views"]
