"""`horovod.runner.elastic`: what programs and tests import from there."""
