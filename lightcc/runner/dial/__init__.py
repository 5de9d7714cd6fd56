"""How workers dial in to a launcher: the proof of the secret, the seal, and who listens."""
