"""The programs that a wheel carries, as console scripts: each hands the process over to the program of its name."""

import os
import ssl
import sys
from pathlib import Path
from typing import NoReturn

FOLDER = Path(__file__).parent / "_programs" / "bin"


def _run(name: str) -> NoReturn:
    program = FOLDER / name
    if not program.exists():
        sys.exit("%s: this is the pure Python package; the wheel that has the programs is built by scripts/package" % name)
    if not os.environ.get("CURL_CA_BUNDLE") and not os.environ.get("SSL_CERT_FILE"):
        # The programs know where Debian keeps certificates; Python knows where this system does.
        known = ssl.get_default_verify_paths().cafile
        if known and not os.path.exists("/etc/ssl/certs/ca-certificates.crt"):
            os.environ["SSL_CERT_FILE"] = known
    os.execv(program, [str(program), *sys.argv[1:]])


def reshard() -> NoReturn:
    _run("reshard")


def dsrun() -> NoReturn:
    _run("dsrun")
