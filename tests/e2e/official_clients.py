"""The Python in which tests find official clients: the virtual environment that scripts/test makes.

Variables of a client are read when it is imported, so a file that needs one calls restart_under first, before it imports
it: the file then runs again there, or ends as one that did not run.
"""

import os
import subprocess
import sys

RESTARTED = "DSPACK_TEST_RESTARTED"


def restart_under(packages, settings):
    """`packages` are importable there. Of this environment nothing that the clients read is kept. No proxy stands between."""
    if RESTARTED in os.environ:
        return
    python = os.environ.get("DSPACK_TEST_PYTHON", "")
    # Looked for, not imported: that takes seconds, and is done once the file runs there.
    statement = "import importlib.util, sys; sys.exit(not all(map(importlib.util.find_spec, %r)))" % (packages,)
    if not os.access(python, os.X_OK) or subprocess.run([python, "-c", statement], capture_output=True).returncode:
        print("DID NOT RUN: %s: not installed in DSPACK_TEST_PYTHON (%s); scripts/test makes it"
              % (", ".join(packages), python or "not set"), flush=True)
        sys.exit(77)
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGING", "OPENAI_", "ANTHROPIC_")) and not name.lower().endswith("_proxy")}
    os.execve(python, [python, "-B", "-W", "ignore::DeprecationWarning", *sys.argv], {**kept, **settings, RESTARTED: "1"})
