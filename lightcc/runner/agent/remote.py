"""What ssh starts on another host: `python -m lightcc.runner.agent.remote`.

Command, environment and secret arrive on standard input, so that the remote process list shows
none of them. The program is the agent, the same as on the launcher's own host. But SIGTERM means
that this host goes, alone, as a pod that is deleted. So it drains.
"""

from __future__ import annotations

import sys

from lightcc.runner.agent.agent import Agent
from lightcc.runner.grace import SIGNAL_GRACE_S


def main() -> int:
    """Runs one job from standard input."""
    # Then 5 s more for ranks that do not leave: `lightcc-pod` waits for 30 s.
    Agent(sys.stdin.fileno(), sys.stdout.fileno(), drain_grace_s=SIGNAL_GRACE_S).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
