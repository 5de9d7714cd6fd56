"""`harp-stat`: the counters of HARP's engines, sessions and paths, while they run.

Reads the files that processes with HARP publish (docs/harp/stat.md), and asks nothing of them.
`layout` reads the bytes, `files` finds files and tells which belong to living processes, `rates`
compares two readings; `table` and `export` show them; `cli` is the command line.
"""
