"""What a hostile input is, and the values that break numbers, texts and paths.

An input is a `Case`: `prepare(folder)` writes it into an empty folder and returns the command lines to run there, as
(program, arguments). A case may also name a server (`serve`), whose address stands for URL in the arguments."""

import copy
import json
from dataclasses import dataclass
from typing import Callable, Optional

RESHARD, DSRUN = "DSPACK_RESHARD", "DSPACK_DSRUN"
URL = "URL/"  # in arguments: the address of the case's server

# No size, count or place is any of these.
NUMBERS = {"-1": -1, "2^53+1 and a half": 2.0**53 * 3 + 0.5, "2^57": 2**57, "2^63": 2**63, "2^64-1": 2**64 - 1,
           "2^64": 2**64, "a text": "7", "a list": [7], "an object": {"a": 7}, "a truth": True}

# No path below a folder is any of these.
PATHS = {"of the parent": "../outside", "through the parent": "a/../../outside", "absolute": "/etc/outside", "empty": "",
         "of Git": ".git/config", "hidden": ".profile", "hidden below": "model/.hidden/x", "this folder": "./x",
         "ends in a slash": "model/", "two slashes": "model//x", "a backslash": "..\\x", "a line feed": "a\nb",
         "an escape": "a\x1b[2Jb", "a NUL": "a\0b", "C1": "a\u009b2Jb", "right to left": "a\u202eb",
         "of the journal": ".reshard/journal", "5,000 characters": "a" * 5000, "a number": 5, "nothing": None}


@dataclass
class Case:
    name: str
    prepare: Callable  # (folder) -> [(program, [arguments])]
    serve: Optional[Callable] = None  # (folder) -> a context manager with `url`
    env: Optional[dict] = None
    after: Optional[Callable] = None  # (test, folder): what must hold then
    harmless: Optional[bytes] = None  # status 0 is as good, if this is what stdout then ends with


def places(document, at=()):
    """Every place of a JSON document as a tuple of keys, containers included, the outermost first."""
    yield at
    items = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    for key, value in items:
        yield from places(value, at + (key,))


def value_at(document, place):
    for key in place:
        document = document[key]
    return document


def replaced(document, place, value):
    """A copy of the document with another value at a place."""
    changed = copy.deepcopy(document)
    if not place:
        return value
    value_at(changed, place[:-1])[place[-1]] = value
    return changed


def without(document, place):
    changed = copy.deepcopy(document)
    del value_at(changed, place[:-1])[place[-1]]
    return changed


def title(place):
    return ".".join(str(key) for key in place)


def is_number(value):
    return isinstance(value, int) and not isinstance(value, bool)


def compact(document):
    return json.dumps(document, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
