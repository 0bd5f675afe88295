#!/usr/bin/env python3
"""What a layer of a model should take on a GPU, kernel by kernel, beside the time that its bytes need: computed from
shapes and from figures of the machine code. Nothing is measured; the last column is for what is.

    tests/bench/estimate_cuda.py [--model v3|v2-lite|v4-flash] [--card h200 h100 4090 5090]

A kernel that reads weights, one token, precision exact:

    time = edge + first + max(bytes / copied, bytes of the fullest multiprocessor / own) + last

  edge     from one kernel of a graph to the next
  first    the first weights: a latency of memory. Inputs are staged meanwhile.
  copied   what the card's memory gives a copy; the floor is bytes / copied
  own      what one multiprocessor takes at most: what its blocks have under way in a latency under load, or what it can
           decode: four instructions of 32 lanes a clock, of which it reaches 70 %
  last     sums and stores of the last rows
Blocks, their shared memory and turns follow from shapes as in the sources (choose_linear, choose_experts, spread_heads);
as many run at once as registers, shared memory and the grid let.

"Before": first is 2.3 us, since weights were asked for only when the inputs were there (review of November), what is under
way was left to the compiler, and each row of the table was a launch of its own or several. Now a product that shares its
launch with the one above it takes the time of its bytes alone, and where launches overlap (compute capability 9.0; an
H200 has 0.5 to 0.93 us, and 0.76 to 1.04 where they do not) an edge is taken to be half as long. Kernels that read no weights, and attention, have a time of their
own each (review of November).

Attention of one row over a long latent cache in BF16, the second table: a block takes some queries and positions at a
time through 2 x (576 + 512) operations each, on the tensor cores once for each term of a query (kernels/cuda/attention/attend.h).

    tile     what is longest of: operations / what tensor cores do with mma.sync; bytes to and from shared memory / 128 a
             clock; its keys / what the second-level cache gives a multiprocessor. Where a block has one tile of keys in
             shared memory, these are waited for
    time     FIXED + max(tiles of the fullest multiprocessor * tile / REACHED, bytes / copied)
    exact    FIXED_EXACT + max(operations / FP32 units / REACHED_EXACT, bytes / copied)

The four constants make an H200's `bf16` (27.9 and 164 us measured) and `exact` (91.6 and 1,332) of 8,192 and 131,072
positions what they are.
"""
import argparse
from dataclasses import dataclass

import check_sass

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
    tensor: float  # operations a clock of a multiprocessor's tensor cores, BF16 with FP32 sums; mma.sync's share of it
    level_2: float  # bytes a clock that the second-level cache gives a multiprocessor: 5.5 TB/s; assumed for the others
    shared: int    # KiB that a block may have


# Tensor cores: data sheets, dense (990, 165, 209 TFLOP/s); mma.sync reaches some 62 % of an H100's.
CARDS = {"h200": Card("H200", 4.3, 132, 1.83, 90, 1, 0.62 * 4096, 22, 227),
         "h100": Card("H100", 3.0, 132, 1.83, 90, 1, 0.62 * 4096, 22, 227),
         "4090": Card("RTX 4090", 0.93, 128, 2.52, 89, 0.85, 512, 16, 99),
         "5090": Card("RTX 5090", 1.6, 170, 2.41, 120, 0.85, 512, 16, 99)}

# By kernel and bytes of a weight, then architecture: KiB under way on a multiprocessor and instructions a byte, before.
# With the shared memory of then: three blocks on cards of 100 KiB.
BEFORE = {
    ("linear", 1): {90: (32, 3.88), 89: (24, 3.80), 120: (24, 3.78)},
    ("linear", 2): {90: (32, 2.32), 89: (24, 2.24), 120: (24, 2.08)},
    ("experts", 1): {90: (32, 3.79), 89: (24, 3.88), 120: (24, 3.69)},
    ("experts", 2): {90: (32, 2.32), 89: (36, 2.41), 120: (24, 2.09)},
    ("plain", 1): {90: (104, 3.60), 89: (128, 3.52), 120: (32, 3.30)},
    ("plain", 2): {90: (128, 2.08), 89: (128, 2.00), 120: (128, 1.75)},
    ("transposed", 1): {90: (16, 9.34), 89: (16, 9.41), 120: (16, 6.14)},
    ("transposed", 2): {90: (16, 6.48), 89: (16, 6.56), 120: (16, 4.73)},
}
# Now: registers, and instructions a byte (check_sass.py --table, one token; the largest of a kernel's loops).
# transposed, which has no loop over weights: about what a warp issues over its bytes, on sm_90.
NOW = {
    ("linear", 1): {90: (60, 4.41), 89: (56, 4.47), 120: (64, 5.38)},
    ("linear", 2): {90: (60, 2.81), 89: (60, 2.78), 120: (64, 3.44)},
    ("experts", 1): {90: (64, 4.50), 89: (64, 4.50), 120: (64, 5.56)},
    ("experts", 2): {90: (64, 2.91), 89: (64, 2.91), 120: (64, 3.91)},
    ("experts", 0.5): {90: (64, 18.45), 89: (64, 18.12), 120: (64, 34.17)},
    ("linear", 4): {90: (56, 1.97), 89: (60, 2.00), 120: (55, 2.41)},
    ("plain", 1): {90: (62, 4.94), 89: (62, 4.94), 120: (60, 4.78)},
    ("plain", 2): {90: (64, 3.31), 89: (64, 3.31), 120: (56, 3.19)},
    ("transposed", 1): {90: (59, 8.0), 89: (58, 8.0), 120: (64, 8.0)},
    ("transposed", 2): {90: (56, 5.0), 89: (56, 5.0), 120: (62, 5.0)},
}
THREAD_BYTES = 64  # of weights that each thread of these kernels has under way


@dataclass
class Grid:
    """How a launch of today is cut."""
    groups: int        # of rows or columns, of as many bytes each
    blocks: int        # that take them by turns
    threads: int       # of a block
    shared: int        # bytes of a block


@dataclass
class Product:
    name: str
    kernel: str
    out: int
    inputs: int
    bytes_of_weight: float  # of a code
    blocks_before: int
    grid: object  # by multiprocessors
    count: int = 1  # matrices that are read
    is_joined: bool = False  # now in the launch of the product above

    @property
    def bytes(self):
        scales = 1 / 32 if self.bytes_of_weight == 0.5 else 0  # MXFP4
        return self.out * self.inputs * (self.bytes_of_weight + scales) * self.count


def ceil_div(value, by):
    return -(-value // by)


def stream_bytes(threads):
    return threads * THREAD_BYTES


def linear_warps(out, chunks):
    """choose_linear: warps that share a row."""
    warps = 1
    while warps < 8 and ceil_div(out, 16 // warps) < 256 and chunks >= 4 * warps * 32:
        warps *= 2
    return warps


def linear(name, out, inputs, size, is_joined=False):
    codes = int(16 / size)
    warps = linear_warps(out, ceil_div(inputs, codes))
    row_groups = ceil_div(out, 16 // warps)
    group_bytes = 32 * codes * 4
    staged = min(max(1, 32 * 1024 // (group_bytes * warps)) * warps,
                 ceil_div(ceil_div(inputs, 32 * codes), warps) * warps)
    shared = staged * group_bytes + 64 + stream_bytes(256)

    def grid(multiprocessors):
        return Grid(row_groups, min(row_groups, 4 * multiprocessors), 256, shared)
    return Product(name, "linear", out, inputs, size, min(row_groups, 132 * 4), grid, 1, is_joined)


def transposed(heads, latent, size, before):
    """choose_head_linear_transposed: a lane has four columns, eight shares of rows a block."""
    lanes = 32
    while lanes > 16 and heads * ceil_div(latent // 4, lanes) < 256:
        lanes //= 2
    blocks = heads * ceil_div(latent // 4, lanes)
    shared = (8 * lanes * 4 + 256 * 2) * 4
    return Product("head_linear_transposed", "transposed", heads * 128, latent, size, before,
                   lambda multiprocessors: Grid(blocks, blocks, 8 * lanes, shared))


def head_linear(heads, latent, size):
    """choose_head_linear: a block has 32 rows of a head."""
    blocks = heads * 128 // 32
    shared = ceil_div(latent * size, 512) * 512 // size * 4 + stream_bytes(256)
    return Product("head_linear", "plain", heads * 128, latent, size, blocks,
                   lambda multiprocessors: Grid(blocks, blocks, 256, shared))


def head_linear_of(heads, rows, columns, size):
    """The same of heads with so many rows."""
    blocks = heads * rows // 32
    shared = ceil_div(columns * size, 512) * 512 // size * 4 + stream_bytes(256)
    return Product("head_linear", "plain", heads * rows, columns, size, blocks,
                   lambda multiprocessors: Grid(blocks, blocks, 256, shared))


def experts(name, count, inner, hidden, size):
    """choose_experts for one token: a tile for each of its experts."""
    def blocks_of(rows, turn_bytes):
        groups = ceil_div(rows, 16)
        turns = 1
        while turns * turn_bytes < 128 * 1024 and count * ceil_div(groups, 2 * turns) >= 768:
            turns *= 2
        return count * ceil_div(groups, turns)
    blocks = blocks_of(inner, 16 * 2 * hidden * size) + blocks_of(hidden, 16 * inner * size)
    group_bytes = 32 * int(16 / size) * 4
    shared = min(ceil_div(int(hidden * size), 512), 32 * 1024 // group_bytes) * group_bytes + stream_bytes(256)
    before = 8 * inner // 16 + 8 * hidden // 64
    return Product(name, "experts", inner, hidden, size, before,
                   lambda multiprocessors: Grid(blocks, blocks, 256, shared), 3 * count)


# Layers with routed experts. Others: kernels without weights, and attention at 1,024 positions, us on an H200, before
# and now.
MODELS = {
    "v3": [
        linear("q_a", 1536, 7168, 1), linear("kv_a", 576, 7168, 1, True), linear("q_b", 24576, 1536, 1),
        transposed(128, 512, 1, 128), head_linear(128, 512, 1),
        linear("o", 7168, 16384, 1), linear("router", 256, 7168, 2),
        experts("routed experts", 8, 2048, 7168, 1),
        linear("shared gate", 2048, 7168, 1, True), linear("shared up", 2048, 7168, 1, True),
        linear("shared down", 7168, 2048, 1, True),
        ("norms (2)", 6.0, 6.0), ("latents: norms, rotation, store; rotation of queries", 10.6, 3.0),
        ("attention, exact", 14.0, 14.0), ("merge of splits", 4.0, 4.0), ("route, in the router's launch", 5.0, 2.0),
        ("SiLU, sums", 8.0, 0.0)],
    # A layer with chosen entries of four positions; its window and 512 entries.
    "v4-flash": [
        linear("q_a", 1024, 4096, 1), linear("kv", 512, 4096, 1, True),
        linear("entries: values", 1024, 4096, 2), linear("gates", 1024, 4096, 2, True),
        linear("index entries: values", 256, 4096, 2, True), linear("gates", 256, 4096, 2, True),
        linear("index weights", 64, 4096, 2), linear("q_b", 32768, 1024, 1), linear("index queries", 8192, 1024, 1),
        head_linear_of(8, 1024, 4096, 1), linear("o_b", 4096, 8192, 1), linear("router", 256, 4096, 2),
        experts("routed experts, FP4", 6, 2048, 4096, 0.5),
        linear("shared gate", 2048, 4096, 1), linear("shared up", 2048, 4096, 1, True),
        linear("shared down", 4096, 2048, 1),
        linear("mixture before attention", 24, 16384, 4), linear("mixture before experts", 24, 16384, 4),
        ("streams: two read, two joined", 8.0, 8.0), ("norms: input (2), queries, keys, heads", 10.0, 10.0),
        ("rotations (4), ring", 10.0, 10.0), ("entries (2), what is kept (2)", 8.0, 8.0), ("choice (2)", 6.0, 6.0),
        ("attention: parts, their sum", 12.0, 12.0), ("SiLU, sums", 6.0, 6.0)],
    "v2-lite": [
        linear("q", 3072, 2048, 2), linear("kv_a", 576, 2048, 2, True),
        transposed(16, 512, 2, 32), head_linear(16, 512, 2),
        linear("o", 2048, 2048, 2), linear("router", 64, 2048, 2),
        experts("routed experts", 6, 1408, 2048, 2),
        linear("shared gate", 2816, 2048, 2, True), linear("shared up", 2816, 2048, 2, True),
        linear("shared down", 2048, 2816, 2, True),
        ("norms (2)", 5.0, 5.0), ("latents: norm, rotation, store; rotation of queries", 8.0, 3.0),
        ("attention, exact", 9.0, 9.0), ("merge of splits", 3.0, 3.0), ("route, in the router's launch", 4.0, 1.5),
        ("SiLU, sums", 8.0, 0.0)],
}


def rate_of(under_way, instructions, card):
    """Bytes of weights a us that a multiprocessor takes at most, with so many under way."""
    return min(under_way / LATENCY, ISSUE * 4 * 32 * card.ghz * 1e3 / instructions)


def time_before(product, card):
    if (product.kernel, product.bytes_of_weight) not in BEFORE:
        return time_now(product, card)
    under_way, instructions = BEFORE[product.kernel, product.bytes_of_weight][card.architecture]
    fullest = ceil_div(product.blocks_before, card.multiprocessors) / product.blocks_before * product.bytes
    own = rate_of(under_way * 1024, instructions, card)
    return EDGE + FIRST_BEFORE + max(floor_of(product, card), fullest / own) + LAST


def blocks_at_once(grid, registers, card):
    """Of the fullest multiprocessor."""
    of_warp = ceil_div(registers, 8) * 8 * 32
    by_registers = check_sass.REGISTERS // (of_warp * grid.threads // 32)
    by_shared = check_sass.CARDS[card.architecture].shared // (grid.shared + check_sass.RESERVED)
    return min(by_registers, by_shared, ceil_div(grid.blocks, card.multiprocessors))


def time_now(product, card):
    floor = floor_of(product, card)
    if product.is_joined:
        return floor  # beside blocks of the other
    registers, instructions = NOW[product.kernel, product.bytes_of_weight][card.architecture]
    grid = product.grid(card.multiprocessors)
    turns = ceil_div(grid.groups, grid.blocks)
    fullest = min(1, ceil_div(grid.blocks, card.multiprocessors) * turns / grid.groups) * product.bytes
    under_way = blocks_at_once(grid, registers, card) * grid.threads * THREAD_BYTES
    return edge_of(card) + FIRST + max(floor, fullest / rate_of(under_way, instructions, card)) + LAST


def floor_of(product, card):
    return product.bytes / card.copied * 1e-6


def edge_of(card):
    return EDGE_OVERLAPPED if card.architecture == 90 else EDGE


def table(model, cards):
    print("| %s, one layer | MB |" % model + "".join(" %s: floor, before, now, µs | measured |" % c.name for c in cards))
    print("|---|---|" + "---|---|" * len(cards))
    totals = {card.name: [0.0, 0.0, 0.0] for card in cards}
    bytes_of_layer = 0
    for row in MODELS[model]:
        is_product = isinstance(row, Product)
        size = row.bytes if is_product else 0
        bytes_of_layer += size
        line = "| %s | %s |" % (row.name if is_product else row[0], "%.1f" % (size * 1e-6) if size else "")
        for card in cards:
            if is_product:
                figures = [floor_of(row, card), time_before(row, card), time_now(row, card)]
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


# Attention over a long cache
REACHED, REACHED_EXACT = 0.65, 0.446
FIXED, FIXED_EXACT = 18.8, 8.9  # us: start, queries, merge
LATENT, ROPE = 512, 64
KEY_BYTES = 2 * (LATENT + ROPE)
HEADS = {"v3": 128, "v2-lite": 16}  # not V4, whose cache has a window
POSITIONS = (8192, 32768, 131072)


@dataclass
class Tile:
    queries: int
    positions: int
    terms: int
    warps: int
    stages: int

    def shared_bytes(self):
        """Read and written for a tile of keys (attention/tensor_products.cuh)."""
        parts = self.warps * 16 // self.queries
        if self.terms == 1:  # a warp: 16 queries, a part of the positions
            scores = self.warps * (16 + self.positions // parts) * KEY_BYTES
        else:  # a warp: 16 queries, all positions, a part of the columns; and the parts' sums, to and fro
            scores = self.warps * (16 * self.terms + self.positions) * KEY_BYTES // parts
            scores += 2 * parts * self.queries * self.positions * 4
        weights = self.positions * 2 * self.terms
        values = self.warps * (self.positions * LATENT // 4 * 2 + self.queries * 4 // self.warps * weights)
        return scores + values + self.queries * weights + self.positions * KEY_BYTES

    def clocks(self, card):
        operations = 2 * self.queries * self.positions * (2 * LATENT + ROPE) * self.terms
        computing = max(operations / card.tensor, self.shared_bytes() / 128)
        loading = self.positions * KEY_BYTES / card.level_2
        return max(computing, loading) if self.stages == 2 else computing + loading


def tile_of(card, heads, terms):
    """attend_choice for one row; None: exact."""
    is_large = card.shared > 200
    if terms > 1 and not is_large:
        return None
    positions = 64 if terms == 1 else 32
    if is_large and heads > 16:
        return Tile(64 if terms == 1 else 32, positions, terms, 8, 2)
    return Tile(16, positions, terms, 4, 2 if is_large else 1)


def attention(card, heads, positions, terms):
    """us of a layer: (expected, what tiles and memory alone take)."""
    operations = 2 * heads * positions * (2 * LATENT + ROPE)
    reading = positions * KEY_BYTES / card.copied * 1e-6
    tile = tile_of(card, heads, terms) if terms else None
    if tile is None:
        computing = operations / (card.multiprocessors * 256 * card.ghz * 1e3)
        return FIXED_EXACT * card.small + max(computing / REACHED_EXACT, reading), max(computing, reading)
    groups = -(-heads // tile.queries)
    splits = min(max(128 // -(-heads // (64 if terms == 1 else 32)), 32), 128)
    length = -(-positions // splits // tile.positions) * tile.positions
    blocks = groups * -(-positions // length)
    tiles = -(-blocks // card.multiprocessors) * length // tile.positions
    computing = tiles * tile.clocks(card) / card.ghz * 1e-3
    return FIXED * card.small + max(computing / REACHED, reading), max(computing, reading)


def attention_table(model, cards):
    print("| %s, attention of one row, BF16 cache, µs a layer |" % model +
          "".join(" %s: exact, split, bf16; at best | measured |" % card.name for card in cards))
    print("|---|" + "---|---|" * len(cards))
    for positions in POSITIONS:
        line = "| {:,} positions |".format(positions)
        for card in cards:
            expected, best = zip(*(attention(card, HEADS[model], positions, terms) for terms in (0, 3, 1)))
            line += " %.0f, %.0f, %.0f; %.0f, %.0f, %.0f | |" % (*expected, *best)
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="v3")
    parser.add_argument("--card", choices=CARDS, nargs="+", default=list(CARDS))
    args = parser.parse_args()
    cards = [CARDS[name] for name in args.card]
    table(args.model, cards)
    if args.model in HEADS:
        print()
        attention_table(args.model, cards)


if __name__ == "__main__":
    main()
