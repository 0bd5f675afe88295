"""JSON from strangers: how much it may hold is counted before any of it is kept.

A list of 64 MB of text takes gigabytes as objects of Python, and a number of a million digits takes minutes.
"""

import json
from typing import Any, Callable, Dict, List, Optional, Tuple

MAX_VALUES = 2_000_000  # keys, strings, numbers, lists and objects; the manifest of DeepSeek-V3 has a million
MAX_NUMBER_CHARACTERS = 64


def _whole(text: str) -> int:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError("a number of %d digits" % len(text))
    return int(text)


def _real(text: str) -> float:
    if len(text) > MAX_NUMBER_CHARACTERS:
        raise ValueError("a number of %d characters" % len(text))
    return float(text)


def parse_json(text: str, most_values: int = MAX_VALUES,
               pairs_hook: Optional[Callable[[List[Tuple[str, Any]]], Dict[str, Any]]] = None) -> Any:
    """Raises ValueError for whatever is no JSON, is nested too deeply, or has too many values."""
    # Each value but the first follows one of these, or is a key; those within strings are counted, too.
    if sum(map(text.count, ",:[{")) >= most_values:
        raise ValueError("more than %d values" % most_values)
    try:
        return json.loads(text, object_pairs_hook=pairs_hook, parse_int=_whole, parse_float=_real)
    except RecursionError:
        raise ValueError("lists within lists, too deep") from None
