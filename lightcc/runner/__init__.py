"""The launcher: starts one process per rank on this host or on several, and ends them together.

`lightccrun` (`launch`) is a single-threaded program: it starts one *agent* per host (`agent.py`; a
child process here, over ssh elsewhere), hands it the host's ranks on its standard input, and from
then on only exchanges frames with it. Agents own the ranks, so a lost launcher or a lost
connection ends them. Nothing of a job's environment or secret ever appears in an argument list.
"""
