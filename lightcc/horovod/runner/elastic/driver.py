"""`horovod.runner.elastic.driver`: two intervals, read whenever an elastic job is started."""

from __future__ import annotations

#: How long there may be too few slots, in seconds, where --elastic-timeout says nothing.
ELASTIC_TIMEOUT_SECS = 600
#: From one run of the host discovery script to the next, in seconds.
DISCOVER_HOSTS_FREQUENCY_SECS = 1.0
