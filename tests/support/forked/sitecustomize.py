"""Makes a command of hvdgan the client of a fork server; see tests/support/forking.py.

Python imports this module when it starts, if this folder is on PYTHONPATH.
"""

import os
import sys

if "HVDGAN_TEST_SERVERS" in os.environ and len(sys.orig_argv) > 2:
    import forking

    forking.ask(sys.orig_argv[1 + (sys.orig_argv[1] == "-m") :])
