"""Reads a page that `reshard inspect --html` wrote, as a browser would and without one: its elements, its policy, and
the catalogue inside it, decoded a second time from what reshard/verbs/inspect_data.h says."""

import base64
import hashlib
import json
from html.parser import HTMLParser


class Page(HTMLParser):
    """`elements`: [(tag, {attribute: value})]; `catalogue`: the JSON; `text`: all of it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.text, self.elements, self.inside = text, [], None
        self.bodies = {"script": [], "style": []}
        self.feed(text)
        self.close()
        self.catalogue = json.loads(self.bodies["script"][0])

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag in self.bodies:
            self.inside = tag
            self.bodies[tag].append("")

    def handle_endtag(self, tag):
        if tag == self.inside:
            self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.bodies[self.inside][-1] += data

    def policy(self):
        """{directive: [source, ...]} of the content security policy."""
        text = next(attributes["content"] for tag, attributes in self.elements
                    if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy")
        directives = [part.split() for part in text.split(";")]
        return {words[0]: words[1:] for words in directives}

    # The catalogue ----------------------------------------------------------------------------------------------

    def units(self):
        """[(place, expert or None, set, number of the first tensor)]"""
        units, number = [], 0
        for place, first, repeated, chosen in self.catalogue["units"]:
            for i in range(repeated):
                units.append((place, None if first < 0 else first + i, chosen, number))
                number += len(self.catalogue["sets"][chosen])
        return units

    def tensors(self):
        """[(name, dtype, shape, bytes, role)] by number."""
        catalogue, tensors = self.catalogue, []
        for place, expert, chosen, _ in self.units():
            for kind in catalogue["sets"][chosen]:
                pieces, dtype, role, size, shape = catalogue["kinds"][kind]
                between = [str(place), str(expert)][:len(pieces) - 1]
                name = pieces[0] + "".join(word + piece for word, piece in zip(between, pieces[1:]))
                tensors.append((name, catalogue["dtypes"][dtype], shape, size, catalogue["roles"][role]))
        return tensors

    def places(self, side):
        """{name: (file, begin, end)} of "before" or "after"."""
        tensors, places = self.tensors(), {}
        for path, _, at, runs in self.catalogue[side]["files"]:
            number = 0
            for skip, count in zip(runs[::2], runs[1::2]):
                if count == 0:
                    at += skip
                    continue
                number += skip
                for tensor in tensors[number:number + count]:
                    assert tensor[0] not in places, tensor[0]
                    places[tensor[0]] = (path, at, at + tensor[3])
                    at += tensor[3]
                number += count
        return places

    def files(self, side):
        """{path: bytes}"""
        return {path: size for path, size, _, _ in self.catalogue[side]["files"]}


def digest(text):
    """As a policy names it."""
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
