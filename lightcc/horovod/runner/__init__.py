"""The parts of `horovod.runner` that programs import and the launcher has no use for."""
