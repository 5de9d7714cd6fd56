"""`python -m lightcc.bench`: measures collectives, beside other libraries in the same run.

The parts: `cases` (what is run), `models` (layers and gradient shapes), `worker` (one rank of one
library, a fresh process, possibly in another virtual environment), `workers` (the parent's end of a
library's ranks), `peers` (which libraries there are and how to install them), `variants` (settings
of a library that are compared), `cluster` (hosts and links on one machine), `measure` (rounds in
turns), `report` (statistics, table, JSON) and `facts` (the machine).

`layer_table` has what `lightcc.plan` predicts, and what `measure/train.py` of the sources emulates.

What a number of a collective is: the time of one call from Python, the slowest rank's, after a
barrier that is the same for every library; medians over all iterations of all rounds, rounds of the
libraries in turns.
"""
