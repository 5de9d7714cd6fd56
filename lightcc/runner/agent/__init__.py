"""What runs on each host, the parent of its ranks, and the launcher's connection to it."""
