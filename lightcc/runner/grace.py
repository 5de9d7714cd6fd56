"""How long ranks have between SIGTERM and SIGKILL, where that asks for the end."""

SIGNAL_GRACE_S = 25.0  #: Unless the job says otherwise.
