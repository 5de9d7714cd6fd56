"""What the user of an elastic job asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """What the user asked for.

    Attributes:
        num_proc: Slots that must be there before the first worker is started.
        min_np: Workers without which there is no epoch.
        max_np: Workers at most; `None`: as many as there are slots.
        elastic_timeout_s: How long there may be too few slots or workers.
        start_timeout_s: How long an epoch waits for workers that have been started.
        reset_limit: How often the members may change; `None`: without a limit.
        cooldown_s: How long, at first and at most, a host or slot that failed is not used. `None`:
            for hosts for ever, for slots 1 and 60.
        lose_host: Whether a failed worker costs its whole host, as with Horovod; or its slot.
        notify_early: Whether members hear of a new worker when it is started.
        roll_call_s: How long members wait for one that does not leave a broken epoch, before it is
            called, and then for its answer.
        stuck_s: How long after that they wait for one that answers, but does not come.
        slow_factor: How slow a member is replaced, as one that has failed; 0: none is.
        hosts_return: Whether hosts come by themselves, so that one that was lost may be used as
            soon as it is there again.
    """

    num_proc: int
    min_np: int
    max_np: int | None = None
    elastic_timeout_s: float = 600.0
    start_timeout_s: float = 30.0
    reset_limit: int | None = None
    cooldown_s: tuple[float, float] | None = None
    lose_host: bool = False
    notify_early: bool = False
    roll_call_s: float = 10.0
    stuck_s: float = 120.0
    slow_factor: float = 0.0
    hosts_return: bool = False

    def too_few(self, failure: str) -> str:
        """Returns what is said where there have been too few workers for too long."""
        return (
            f"Timed out waiting for {self.min_np} workers. Please check that you have enough "
            f"resources to run at least {self.min_np} Horovod processes. Timeout after "
            f"{self.elastic_timeout_s:g} seconds."
            + (f" The last failure: {failure}" if failure else "")
        )
