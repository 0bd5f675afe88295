"""Reads a page as a browser would and without one: its elements, and what its policy names."""

import base64
import hashlib
from html.parser import HTMLParser


class Elements(HTMLParser):
    """`elements`: [(tag, {attribute: value})]; `bodies`: texts of scripts and styles; `text`: all of it."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.text, self.elements, self.inside = text, [], None
        self.bodies = {"script": [], "style": []}
        self.feed(text)
        self.close()

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


def digest(text):
    """As a policy names it."""
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
