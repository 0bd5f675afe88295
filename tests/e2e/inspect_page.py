"""The page that `reshard inspect --html` wrote, and the catalogue inside it, decoded a second time from what
reshard/verbs/inspect_data.h says."""

import json

from page_elements import Elements, digest  # noqa: F401  (digest is re-exported to the tests)


class Page(Elements):
    """`catalogue`: the JSON."""

    def __init__(self, text):
        super().__init__(text)
        self.catalogue = json.loads(self.bodies["script"][0])

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
                number = place - 60000 if isinstance(place, int) and place >= 60000 else place  # an MTP module apart
                between = [str(number), str(expert)][:len(pieces) - 1]
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
