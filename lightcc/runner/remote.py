"""What ssh starts on another host: `python -m lightcc.runner.remote`.

Command, environment and secret arrive on standard input, so that the remote process list shows
none of them. The program is the agent, the same as on the launcher's own host.
"""

from __future__ import annotations

import sys

from lightcc.runner.agent import main

if __name__ == "__main__":
    sys.exit(main())
