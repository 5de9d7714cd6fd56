"""`horovod.runner.elastic.worker`: how workers hear of hosts."""

from __future__ import annotations

from lightcc.elastic import HostUpdateResult, WorkerNotificationManager

__all__ = ["HostUpdateResult", "WorkerNotificationManager"]
