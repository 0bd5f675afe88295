"""Journals of unfinished work and of caches, whose records have the right check and lie."""

import hashlib
import json
import shutil

from checkpoints import write_big
from hostile.cases import DSRUN, NUMBERS, PATHS, RESHARD, Case, compact, is_number, places, replaced, title, value_at


class Sound:
    """An unfinished repack and the cache of a distant model, with the servers that both came from."""

    def __init__(self, test):
        source = write_big(test.scratch / "source")
        server = test.serve(source)
        server.add_fault("*00002*", "truncate", min_bytes=100_000)
        self.unfinished = test.scratch / "unfinished"
        test.run_program(server.url, "--by", "expert", "--out", self.unfinished, "--dev", "retries=0")
        test.assert_unfinished(self.unfinished)
        server.clear_faults()
        self.source_url = server.url
        self.whole = test.scratch / "whole"
        test.assert_ok(test.repack(source, self.whole))
        self.model_url = test.serve(test.data()).url
        self.cache = test.scratch / "cache"
        program, arguments = self.generate(self.cache)
        self.ids = test.assert_ok(test.run_program(*arguments, program=program)).stdout_bytes

    def repack(self, out):
        return (RESHARD, [self.source_url, "--by", "expert", "--out", out])

    def generate(self, cache):
        return (DSRUN, [self.model_url, "--tokens", "0,5", "-n", "3", "--ctx", "16", "--device", "cpu", "--threads", "1", "--cache", cache])


def line(record):
    text = compact(record)
    return "%s %s" % (hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16], text)


def read(journal):
    return [json.loads(text[17:]) for text in journal.read_text().splitlines()]


def changed_records(records):
    """(name, records) with one value changed, once for each kind of place in each kind of record."""
    seen = set()
    for number, record in enumerate(records):
        for place in places(record):
            value = value_at(record, place)
            kind = tuple("*" if isinstance(key, int) else key for key in place)
            about = (tuple(sorted(record)), kind)
            if not place or about in seen or isinstance(value, dict):
                continue
            seen.add(about)
            if is_number(value):
                others = NUMBERS
            elif isinstance(value, str) and kind[-1] in ("path", "file", "part", "text", "header", "absent", "tensor"):
                others = PATHS
            else:
                others = {"a number": 5, "null": None, "deep": [[[]]]}
            for name, other in others.items():
                yield "%s of record %d is %s" % (title(place), number, name), [
                    *records[:number], replaced(record, place, other), *records[number + 1:]]


def journal_case(name, folder_of, journal, records, commands, **more):
    text = ("\n".join(line(record) for record in records) + "\n").encode("utf-8", "surrogatepass")

    def prepare(folder):
        shutil.copytree(folder_of, folder / "work", copy_function=shutil.copy2)
        (folder / "work" / journal).write_bytes(text)
        return commands(folder / "work")

    return Case(name, prepare, **more)


def cases(sound):
    """A run that goes on with such a journal ends with the sound run's bytes, or refuses."""
    def same_or_unfinished(test, folder):
        if (folder / "work/manifest.json").exists():
            test.assert_same_tree(folder / "work", sound.whole)

    for name, changed in changed_records(read(sound.unfinished / ".reshard/journal")):
        yield journal_case("journal: " + name, sound.unfinished, ".reshard/journal", changed, lambda work: [sound.repack(work)],
                           harmless=b"", after=same_or_unfinished)
    journal = next(sound.cache.rglob(".dspack-cache/journal")).relative_to(sound.cache)
    for name, changed in changed_records(read(sound.cache / journal)):
        yield journal_case("cache: " + name, sound.cache, journal, changed, lambda work: [sound.generate(work)], harmless=sound.ids)
