"""dsrun's token ids against the reference programs, on more than 10 MB of mixed text for each kind of tokenizer.

    pip install tokenizers==0.23.3 tiktoken==0.14.0
    python compare_tokenizers.py ../../../build/runtime/dsrun [FOLDER] [--kinds v3,v2,kimi] [--vocabulary 32000]

Vocabularies are built in FOLDER (default: a temporary one; kept ones are used again). Prints what was compared and each
kind's differences; status 1 if there is any.
"""
import argparse
import collections
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

import corpus
import references
import vocabularies


def run_dsrun(dsrun, folder, option, file):
    """The lines, and the processor seconds: both programs use one thread, and the machine may have other work."""
    started = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run([dsrun, "tokenize", folder, option, file], capture_output=True)
    if done.returncode != 0:
        sys.exit(f"dsrun failed: {done.stderr.decode()}")
    return done.stdout.decode().split("\n")[:-1], resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - started


def show(kind, piece, ours, theirs):
    at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    print(f"  {kind}: first different at token {at}: {ours[at:at + 6]} is not {theirs[at:at + 6]}; text begins "
          f"{piece[:60]!r}")


def compare_encoding(reference, dsrun, folder, work, pieces):
    assert not any(b"\0" in piece for _, piece in pieces)
    (work / "texts").write_bytes(b"".join(piece + b"\0" for _, piece in pieces))
    (work / "nothing").write_bytes(b"")
    lines, seconds = run_dsrun(dsrun, folder, "--dev", "texts=%s" % (work / "texts"))
    seconds -= run_dsrun(dsrun, folder, "--dev", "texts=%s" % (work / "nothing"))[1]  # loading
    assert len(lines) == len(pieces), (len(lines), len(pieces))
    sizes, counts, different, tokens, reference_seconds = (collections.Counter(), collections.Counter(),
                                                           collections.Counter(), 0, 0.0)
    for (kind, piece), line in zip(pieces, lines):
        text = piece.decode("utf-8", "replace")
        started = time.process_time()
        theirs = reference.encode(text)
        reference_seconds += time.process_time() - started
        ours = [int(word) for word in line.split()]
        sizes[kind] += len(piece)
        counts[kind] += 1
        tokens += len(theirs)
        if ours != theirs:
            different[kind] += 1
            if different[kind] <= 3:
                show(kind, piece, ours, theirs)
    for kind in sizes:
        print(f"  {kind:30} {sizes[kind] / 1e6:8.3f} MB {counts[kind]:6} pieces {different[kind]:4} differences")
    total = sum(sizes.values())
    print(f"  {'sum':30} {total / 1e6:8.3f} MB {len(pieces):6} pieces {sum(different.values()):4} differences, "
          f"{tokens} tokens; dsrun {total / 1e6 / seconds:.1f} MB/s, reference {total / 1e6 / reference_seconds:.1f} MB/s")
    return sum(different.values())


def compare_decoding(reference, dsrun, folder, work, count=3000):
    """Random ids: most break characters."""
    random_source = random.Random(9)
    lists = [[random_source.randrange(reference.size()) for _ in range(random_source.randint(0, 60))] for _ in range(count)]
    lists += [[random_source.randrange(min(300, reference.size())) for _ in range(40)] for _ in range(count)]
    (work / "ids").write_text("".join(" ".join(map(str, ids)) + "\n" for ids in lists))
    lines, _ = run_dsrun(dsrun, folder, "--dev", "ids=%s" % (work / "ids"))
    assert len(lines) == len(lists)
    different = sum(json.loads(line) != reference.decode(ids) for ids, line in zip(lists, lines))
    print(f"  {'decoding random ids':30} {sum(map(len, lists))} ids in {len(lists)} lists, {different} differences")
    return different


def compare_nul(reference, dsrun, folder):
    text = "a\0b \0\0 c\0"
    done = subprocess.run([dsrun, "tokenize", folder, "-p", "-"], input=text.encode(), capture_output=True, check=True)
    return int([int(word) for word in done.stdout.split()] != reference.encode(text))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("dsrun")
    arguments.add_argument("folder", nargs="?")
    arguments.add_argument("--kinds", default="v3,v2,kimi")
    arguments.add_argument("--borders-only", action="store_true")
    arguments.add_argument("--vocabulary", type=int, default=32000)
    options = arguments.parse_args()
    different = 0
    with tempfile.TemporaryDirectory() as temporary:
        for kind in options.kinds.split(","):
            folder = pathlib.Path(options.folder or temporary) / kind
            if not folder.exists():
                vocabularies.BUILD[kind](folder, corpus.training_text(), options.vocabulary)
            reference = references.load(kind, folder)
            print(f"{kind}: {reference.size()} tokens, {len(reference.specials())} of them added; reference: "
                  f"{reference.name}", flush=True)
            if not options.borders_only:
                different += compare_encoding(reference, options.dsrun, folder, pathlib.Path(temporary),
                                              list(corpus.pieces(reference.specials())))
            borders = pathlib.Path(temporary) / "borders" / kind
            vocabularies.with_joints(kind, folder, borders)
            different += compare_encoding(references.load(kind, borders), options.dsrun, borders,
                                          pathlib.Path(temporary), list(corpus.border_pieces()))
            different += compare_decoding(reference, options.dsrun, folder, pathlib.Path(temporary))
            different += compare_nul(reference, options.dsrun, folder)
    print(f"{different} differences")
    sys.exit(different != 0)


if __name__ == "__main__":
    main()
