"""`horovod.common`: what Horovod's adapters share, as far as programs import it."""
