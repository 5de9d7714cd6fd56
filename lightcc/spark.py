"""Spark is not there yet: importing this module says so, and what there is."""

from __future__ import annotations

from lightcc._not_yet import absent_module

raise absent_module(__name__, "Spark")
