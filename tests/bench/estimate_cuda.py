#!/usr/bin/env python3
"""What a layer of a model should take on a GPU, kernel by kernel, beside the time that its bytes need: computed from
shapes and from figures of the machine code. Nothing is measured; the last column is for what is.

    tests/bench/estimate_cuda.py [--model v3|v2-lite] [--card h200 h100 4090 5090]

A kernel that reads weights, one token, precision exact:

    time = edge + first + max(bytes / copied, blocks of the fullest multiprocessor * bytes of a block / own) + last

  edge     from one kernel of a graph to the next
  first    the first weights: a latency of memory. Inputs are staged meanwhile.
  copied   what the card's memory gives a copy; the floor is bytes / copied
  own      what one multiprocessor takes at most: what it has under way in a latency under load, or what it can decode:
           four instructions of 32 lanes a clock, of which it reaches 70 %
  last     sums and stores of the last rows
"Before": first is 2.3 us, since weights were asked for only when the inputs were there (review of November), what is under
way was left to the compiler, and each row of the table was a launch of its own or several. Now a product that shares its
launch with the one above it takes the time of its bytes alone, and where launches overlap (compute capability 9.0; an
H200 has 0.5 to 0.93 us, and 0.76 to 1.04 where they do not) an edge is taken to be half as long. Kernels that read no weights, and attention, have a time of their
own each (review of November).
"""
import argparse
from dataclasses import dataclass

EDGE, FIRST, LAST, LATENCY = 1.25, 0.9, 0.5, 0.8  # us
FIRST_BEFORE = 2.3
EDGE_OVERLAPPED = 0.6
ISSUE = 0.7


@dataclass
class Card:
    name: str
    copied: float  # TB/s
    multiprocessors: int
    ghz: float
    architecture: int
    small: float   # time of a kernel without weights, of the H200's


CARDS = {"h200": Card("H200", 4.3, 132, 1.83, 90, 1), "h100": Card("H100", 3.0, 132, 1.83, 90, 1),
         "4090": Card("RTX 4090", 0.93, 128, 2.52, 89, 0.85), "5090": Card("RTX 5090", 1.6, 170, 2.41, 120, 0.85)}

# By kernel and architecture: KiB under way on a multiprocessor before, now; instructions a byte before, now
# (check_sass.py --table, one token; the largest of a kernel's loops). "Before" with the shared memory of then: three
# blocks on cards of 100 KiB.
FACTS = {
    ("linear", 1, 90): ((32, 3.88), (64, 4.34)), ("linear", 2, 90): ((32, 2.32), (64, 2.75)),
    ("linear", 1, 89): ((24, 3.80), (32, 4.34)), ("linear", 2, 89): ((24, 2.24), (32, 2.75)),
    ("linear", 1, 120): ((24, 3.78), (32, 4.50)), ("linear", 2, 120): ((24, 2.08), (32, 2.69)),
    ("experts", 1, 90): ((32, 3.79), (64, 4.47)), ("experts", 2, 90): ((32, 2.32), (64, 2.91)),
    ("experts", 1, 89): ((24, 3.88), (32, 4.28)), ("experts", 2, 89): ((36, 2.41), (32, 2.72)),
    ("experts", 1, 120): ((24, 3.69), (32, 4.38)), ("experts", 2, 120): ((24, 2.09), (32, 2.81)),
    ("plain", 1, 90): ((104, 3.60), (64, 4.69)), ("plain", 2, 90): ((128, 2.08), (64, 3.12)),
    ("plain", 1, 89): ((128, 3.52), (64, 4.31)), ("plain", 2, 89): ((128, 2.00), (64, 2.75)),
    ("plain", 1, 120): ((32, 3.30), (64, 4.09)), ("plain", 2, 120): ((128, 1.75), (64, 2.53)),
    ("transposed", 1, 90): ((16, 9.34), (32, 4.59)), ("transposed", 2, 90): ((16, 6.48), (32, 2.81)),
    ("transposed", 1, 89): ((16, 9.41), (32, 4.56)), ("transposed", 2, 89): ((16, 6.56), (32, 2.81)),
    ("transposed", 1, 120): ((16, 6.14), (32, 4.50)), ("transposed", 2, 120): ((16, 4.73), (32, 3.00)),
}


@dataclass
class Product:
    name: str
    kernel: str
    out: int
    inputs: int
    rows_of_block: int
    blocks_before: int
    blocks: int
    bytes_of_weight: int
    count: int = 1  # matrices that are read
    is_joined: bool = False  # now in the launch of the product above


def blocks_of_linear(out, inputs, chunk, multiprocessors=132):
    """choose_linear for one row: (blocks, rows of a block)."""
    warps = 1
    while warps < 4 and -(-out // (16 // warps)) < 256 and -(-inputs // chunk) >= 4 * warps * 32:
        warps *= 2
    rows = 16 // warps
    return min(-(-out // rows), multiprocessors * 4), rows


def linear(name, out, inputs, size, is_joined=False):
    blocks, rows = blocks_of_linear(out, inputs, 16 // size)
    return Product(name, "linear", out, inputs, rows, blocks, blocks, size, 1, is_joined)


def heads(name, kernel, heads_of_model, latent, size, before, now):
    return Product(name, kernel, heads_of_model * 128, latent, 0, before, now, size)


def experts(name, count, inner, hidden, size):
    return Product(name, "experts", inner, hidden, 16, 8 * inner // 16 + 8 * hidden // 64, 8 * inner // 16 +
                   8 * hidden // 64, size, 3 * count)


# Layers with routed experts. Others: kernels without weights, and attention at 1,024 positions, us on an H200, before
# and now.
MODELS = {
    "v3": [
        linear("q_a", 1536, 7168, 1), linear("kv_a", 576, 7168, 1, True), linear("q_b", 24576, 1536, 1),
        heads("head_linear_transposed", "transposed", 128, 512, 1, 128, 256),
        heads("head_linear", "plain", 128, 512, 1, 512, 512),
        linear("o", 7168, 16384, 1), linear("router", 256, 7168, 2),
        experts("routed experts", 8, 2048, 7168, 1),
        linear("shared gate", 2048, 7168, 1, True), linear("shared up", 2048, 7168, 1, True),
        linear("shared down", 7168, 2048, 1, True),
        ("norms (2)", 6.0, 6.0), ("latents: norms, rotation, store; rotation of queries", 10.6, 3.0),
        ("attention, exact", 14.0, 14.0), ("merge of splits", 4.0, 4.0), ("route, in the router's launch", 5.0, 2.0),
        ("SiLU, sums", 8.0, 0.0)],
    "v2-lite": [
        linear("q", 3072, 2048, 2), linear("kv_a", 576, 2048, 2, True),
        heads("head_linear_transposed", "transposed", 16, 512, 2, 32, 128),
        heads("head_linear", "plain", 16, 512, 2, 64, 64),
        linear("o", 2048, 2048, 2), linear("router", 64, 2048, 2),
        experts("routed experts", 6, 1408, 2048, 2),
        linear("shared gate", 2816, 2048, 2, True), linear("shared up", 2816, 2048, 2, True),
        linear("shared down", 2048, 2816, 2, True),
        ("norms (2)", 5.0, 5.0), ("latents: norm, rotation, store; rotation of queries", 8.0, 3.0),
        ("attention, exact", 9.0, 9.0), ("merge of splits", 3.0, 3.0), ("route, in the router's launch", 4.0, 1.5),
        ("SiLU, sums", 8.0, 0.0)],
}


def time_of(product, card, is_now):
    """(us, floor in us)."""
    key = (product.kernel, product.bytes_of_weight, card.architecture)
    under_way, instructions = FACTS[key][is_now]
    size = product.out * product.inputs * product.bytes_of_weight * product.count
    floor = size / card.copied * 1e-6
    blocks = product.blocks if is_now else product.blocks_before
    fullest = -(-blocks // card.multiprocessors) / blocks * size
    by_latency = under_way * 1024 / LATENCY                                   # bytes a us
    by_issue = ISSUE * 4 * 32 * card.ghz * 1e3 / instructions
    own = min(by_latency, by_issue)
    reading = max(floor, fullest / own)
    if not is_now:
        return EDGE + FIRST_BEFORE + reading + LAST, floor
    if product.is_joined:
        return floor, floor  # beside blocks of the other
    return edge_of(card) + FIRST + reading + LAST, floor


def edge_of(card):
    return EDGE_OVERLAPPED if card.architecture == 90 else EDGE


def table(model, cards):
    print("| %s, one layer | MB |" % model + "".join(" %s: floor, before, now, µs | measured |" % c.name for c in cards))
    print("|---|---|" + "---|---|" * len(cards))
    totals = {card.name: [0.0, 0.0, 0.0] for card in cards}
    bytes_of_layer = 0
    for row in MODELS[model]:
        is_product = isinstance(row, Product)
        size = row.out * row.inputs * row.bytes_of_weight * row.count if is_product else 0
        bytes_of_layer += size
        line = "| %s | %s |" % (row.name if is_product else row[0], "%.1f" % (size * 1e-6) if size else "")
        for card in cards:
            if is_product:
                now, floor = time_of(row, card, 1)
                figures = [floor, time_of(row, card, 0)[0], now]
            else:
                figures = [0.0, row[1] * card.small, row[2] * card.small]
            totals[card.name] = [a + b for a, b in zip(totals[card.name], figures)]
            line += (" %.1f, %.1f, %.1f | |" % tuple(figures) if is_product else " %.1f, %.1f | |" % tuple(figures[1:]))
        print(line)
    line = "| **layer** | %.1f |" % (bytes_of_layer * 1e-6)
    for card in cards:
        floor, before, now = totals[card.name]
        line += " **%.0f, %.0f (%.0f %%), %.0f (%.0f %%)** | |" % (floor, before, 100 * floor / before, now,
                                                                  100 * floor / now)
    print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="v3")
    parser.add_argument("--card", choices=CARDS, nargs="+", default=list(CARDS))
    args = parser.parse_args()
    table(args.model, [CARDS[name] for name in args.card])


if __name__ == "__main__":
    main()
