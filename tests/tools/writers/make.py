#!/usr/bin/env python3
"""Makes checkpoints with the packages that write them, and for each one its twin without a format: FOLDER/KIND and
FOLDER/KIND.twin. `make.py FOLDER WRITER [KIND ...]`; README.md says which writer needs which environment."""
import argparse
import importlib
import pathlib
import shutil
import sys
import traceback


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("writer", help="compressed_tensors, gptq, ...: a file with_WRITER.py")
    parser.add_argument("kinds", nargs="*")
    arguments = parser.parse_args()
    writer = importlib.import_module("with_" + arguments.writer)
    failed = []
    for kind in arguments.kinds or writer.KINDS:
        places = [arguments.folder / kind, arguments.folder / (kind + ".twin")]
        for place in places:
            shutil.rmtree(place, ignore_errors=True)
        try:
            writer.KINDS[kind](*places)
            print("%s: made" % kind, flush=True)
        except Exception:  # each kind is a program of its own kind of trouble; the others are made all the same
            traceback.print_exc()
            failed.append(kind)
            for place in places:
                shutil.rmtree(place, ignore_errors=True)
    if failed:
        sys.exit("not made: " + ", ".join(failed))


if __name__ == "__main__":
    main()
