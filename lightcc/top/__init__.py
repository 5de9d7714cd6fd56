"""`lightcc-top`: what the ranks of this machine do, live; and the same numbers for Prometheus.

`reading` finds ranks and asks them, `screen` makes of two readings what is shown, `export` what
Prometheus scrapes, and `cli` is the command line. HARP's counters come from its own files.
"""
