#!/usr/bin/env python3
"""Makes the wheel: the Python package with both programs inside, from an installed prefix.

    make_wheel.py PREFIX OUT_FOLDER

A wheel is a zip file with a list of its contents. Its tag names the C library that the programs need, read off them."""

import base64
import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}


def glibc_of(program):
    """The least version of the C library that has every symbol, and a check that no other library is needed."""
    dynamic = subprocess.run(["readelf", "-dW", program], check=True, capture_output=True, text=True).stdout
    needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
    if needed - ALLOWED:
        sys.exit("%s needs %s" % (program, ", ".join(sorted(needed - ALLOWED))))
    symbols = subprocess.run(["readelf", "-VW", program], check=True, capture_output=True, text=True).stdout
    return max(tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_([0-9.]+)", symbols))


def record_line(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return "%s,sha256=%s,%d\n" % (name, digest, len(data))


def main(prefix, out):
    version = re.search(r'__version__ = "(.*)"', (ROOT / "python/dspack/__init__.py").read_text()).group(1)
    glibc = max(glibc_of(prefix / "bin" / name) for name in ("reshard", "dsrun"))
    tag = "py3-none-manylinux_%d_%d_%s" % (*glibc, os.uname().machine)
    info = "dspack-%s.dist-info" % version
    files = {"dspack/" + path.name: path for path in (ROOT / "python/dspack").iterdir() if path.suffix in (".py", ".typed")}
    for folder in ("bin", "share/dspack", "share/man"):
        files.update({"dspack/_programs/%s" % path.relative_to(prefix): path for path in (prefix / folder).rglob("*")
                      if path.is_file()})
    texts = {
        info + "/METADATA": "Metadata-Version: 2.1\nName: dspack\nVersion: %s\nSummary: Repack DeepSeek-class "
                            "mixture-of-experts checkpoints per expert, and run them\nLicense: Apache-2.0\n"
                            "Requires-Python: >=3.9\n" % version,
        info + "/WHEEL": "Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: %s\n" % tag,
        info + "/entry_points.txt": "[console_scripts]\nreshard = dspack.programs:reshard\ndsrun = dspack.programs:dsrun\n",
        info + "/licenses/LICENSE": (ROOT / "LICENSE").read_text(),
        info + "/licenses/THIRD-PARTY.md": (ROOT / "THIRD-PARTY.md").read_text(),
    }
    licences = prefix / "share/doc/dspack/licenses"
    texts.update({info + "/licenses/" + path.name: path.read_text() for path in sorted(licences.iterdir())})
    contents = [(name, path.read_bytes(), os.access(path, os.X_OK)) for name, path in sorted(files.items())]
    contents += [(name, text.encode(), False) for name, text in texts.items()]
    record = "".join(record_line(name, data) for name, data, _ in contents) + info + "/RECORD,,\n"
    wheel = out / ("dspack-%s-%s.whl" % (version, tag))
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data, executable in [*contents, (info + "/RECORD", record.encode(), False)]:
            entry = zipfile.ZipInfo(name, (2026, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    print(wheel)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
