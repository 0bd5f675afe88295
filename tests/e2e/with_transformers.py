"""What the tests that open a result with transformers share: the Python that has it, and how it is asked.

transformers and PyTorch are heavy, so scripts/test does not install them. DSPACK_TEST_TRANSFORMERS names a Python that
has them (tests/tools/transformers/README.md); without it these tests end as ones that did not run.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from common import SKIPPED, clean_environment

TOOLS = Path(__file__).resolve().parent.parent / "tools" / "transformers"
PYTHON = os.environ.get("DSPACK_TEST_TRANSFORMERS", "")
TIMEOUT_SECONDS = 900  # ends what hangs: importing and opening take seconds, on a busy machine a minute


def need_transformers():
    """Ends the file if there is no such Python; fails it if there is one that cannot import them."""
    if not PYTHON:
        print("DID NOT RUN: whether transformers opens what was packed: DSPACK_TEST_TRANSFORMERS names no Python that has "
              "it; tests/tools/transformers/README.md says how to make one", flush=True)
        sys.exit(SKIPPED)
    subprocess.run([PYTHON, "-c", "import torch, transformers"], check=True)


def start_python(case, arguments, env=None):
    """`arguments` for that Python, in an environment without settings of the person who runs the tests. The Hub's cache is
    below the case's scratch folder."""
    settings = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                "HF_HOME": str(case.scratch / "hf-home")}
    process = subprocess.Popen([PYTHON, "-B", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, env=clean_environment(case.scratch, {**settings, **(env or {})}))
    process.command = arguments
    case.addCleanup(case.stop, process)
    return process


def run_python(case, arguments, env=None):
    return case.finish(start_python(case, arguments, env), timeout=TIMEOUT_SECONDS)


def opened(case, places, *arguments, env=None):
    """{place: what opened.py tells of it}. A folder is opened as it is, so nothing is asked of a hub for it."""
    result = case.assert_ok(run_python(case, [TOOLS / "opened.py", *arguments, *places], env))
    reports = [json.loads(line) for line in result.stdout.splitlines()]
    case.assertEqual(len(reports), len(places), str(result))
    return dict(zip(map(str, places), reports))


def differences(one, other):
    """What is not equal in two reports of the same model; empty if all of it is."""
    found = ["%s: %s and %s" % (name, str(one.get(name))[:200], str(other.get(name))[:200])
             for name in sorted({*one, *other} - {"place", "parameters"}) if one.get(name) != other.get(name)]
    mine, theirs = one["parameters"], other["parameters"]
    return found + ["parameter %s: %s and %s" % (name, mine.get(name), theirs.get(name))
                    for name in sorted({*mine, *theirs}) if mine.get(name) != theirs.get(name)]
