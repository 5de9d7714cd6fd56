"""`python -m lightcc.bench`: measures collectives, beside other libraries in the same run.

The parts: `cases` (what is run), `models` (gradient shapes), `worker` (one rank of one library, a
fresh process, possibly in another virtual environment), `workers` (the parent's end of a library's
ranks), `peers` (which libraries there are and how to install them), `measure` (rounds in turns),
`report` (statistics, table, JSON, plot) and `facts` (the machine).

What a number is: the time of one call from Python, the slowest rank's, after a barrier that is the
same for every library; medians over all iterations of all rounds, rounds of the libraries in turns.
"""
