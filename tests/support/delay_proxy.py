#!/usr/bin/env python3
"""A long line: passes TCP connections on to a server, with a delay and a bound on the rate of each connection.

As a module:

    with DelayProxy(server.port, round_trip=0.08, rate=12_500_000) as proxy:
        ... "http://127.0.0.1:%d" % proxy.port ... proxy.connections ...

From the command line (prints its port as the first line):

    delay_proxy.py PORT [--listen PORT] [--round-trip SECONDS] [--rate BYTES_PER_SECOND] [--total-rate BYTES_PER_SECOND]

Every byte arrives half a round trip after it was sent, and the first byte of a connection one more round trip later: so
long a handshake takes. `rate` bounds what the server sends over one connection, `total_rate` over all of them together;
neither models how a congestion window grows. At most what fills a round trip, and a piece, is under way: a client that
does not read stops the server. It runs in a process of its own, so that its work does not hold the test's threads.

Standard library only; Python 3.9 or later.
"""

import argparse
import asyncio
import multiprocessing
import socket
import time

PIECE_BYTES = 256 * 1024
LATE_SECONDS = 0.5  # that are made up for
PACE_SECONDS = 0.02  # a bounded connection gets so long a piece at a time, so that it flows evenly


class Pace:
    """Bytes per second over time. Unused time is not saved up, but for what a late timer has lost: on a machine with much
    to do timers are late, and the line should be as fast as it says."""

    def __init__(self, rate):
        self.rate, self.free_at, self.late = rate, 0.0, 0.0

    def piece_bytes(self):
        return PIECE_BYTES if not self.rate else max(1, min(PIECE_BYTES, int(self.rate * PACE_SECONDS)))

    def book(self, count):
        """Seconds until `count` more bytes have had their turn."""
        if not self.rate:
            return 0.0
        now = time.monotonic()
        self.free_at = max(self.free_at, now - PACE_SECONDS - self.late) + count / self.rate
        return self.free_at - now

    def had_turn(self):
        """To be called when those seconds are over."""
        self.late = min(LATE_SECONDS, max(0.0, time.monotonic() - self.free_at)) if self.rate else 0.0


class Direction:
    """One way of a connection: reads as fast as the paces allow, writes when the delay is over."""

    def __init__(self, reader, writer, delay, paces, window_bytes):
        self.reader, self.writer, self.delay, self.paces = reader, writer, delay, paces
        self.window_bytes, self.under_way, self.closed = window_bytes, 0, False
        self.pieces = asyncio.Queue()
        self.room = asyncio.Event()

    async def run(self, first_delay):
        await asyncio.gather(self.read_pieces(first_delay), self.write_pieces())

    async def read_pieces(self, first_delay):
        extra = first_delay
        try:
            while True:
                while self.under_way >= self.window_bytes and not self.closed:
                    self.room.clear()
                    await self.room.wait()
                piece = await self.reader.read(min(pace.piece_bytes() for pace in self.paces))
                if not piece or self.closed:
                    break
                wait = max(pace.book(len(piece)) for pace in self.paces)
                if wait > 0:
                    await asyncio.sleep(wait)
                for pace in self.paces:
                    pace.had_turn()
                self.under_way += len(piece)
                self.pieces.put_nowait((time.monotonic() + self.delay + extra, piece))
                extra = 0.0
        except OSError:
            pass
        self.pieces.put_nowait((time.monotonic() + self.delay + extra, b""))

    async def write_pieces(self):
        try:
            while True:
                due, piece = await self.pieces.get()
                wait = due - time.monotonic()
                if wait > 0:
                    await asyncio.sleep(wait)
                if not piece:
                    break
                self.writer.write(piece)
                await self.writer.drain()
                self.under_way -= len(piece)
                self.room.set()
        except OSError:
            pass
        # What hangs up on one side is hung up on the other, half a round trip later.
        self.writer.close()
        self.closed = True
        self.room.set()


async def serve(listener, port, round_trip, rate, total_rate, connections):
    total = Pace(total_rate)
    # A rate unknown is as much as a fast line has.
    window = int((rate or total_rate or 1e9) * round_trip) + 2 * PIECE_BYTES

    async def connected(client_reader, client_writer):
        with connections.get_lock():
            connections.value += 1
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", port, limit=PIECE_BYTES)
        except OSError:
            client_writer.close()
            return
        for writer in (client_writer, server_writer):
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        up = Direction(client_reader, server_writer, round_trip / 2, [Pace(None)], window)
        down = Direction(server_reader, client_writer, round_trip / 2, [Pace(rate), total], window)
        await asyncio.gather(up.run(round_trip), down.run(0.0))

    server = await asyncio.start_server(connected, sock=listener, limit=PIECE_BYTES, backlog=512)
    async with server:
        await server.serve_forever()


def run(listener, port, round_trip, rate, total_rate, connections):
    try:
        asyncio.run(serve(listener, port, round_trip, rate, total_rate, connections))
    except KeyboardInterrupt:
        pass


class DelayProxy:
    """`connections`: how many there have been."""

    def __init__(self, port, round_trip=0.08, rate=None, total_rate=None, listen=0):
        listener = socket.create_server(("127.0.0.1", listen), backlog=512)
        self.port = listener.getsockname()[1]
        context = multiprocessing.get_context("fork")
        self._connections = context.Value("L", 0)
        self._process = context.Process(target=run, daemon=True,
                                        args=(listener, port, round_trip, rate, total_rate, self._connections))
        self._process.start()
        listener.close()

    @property
    def connections(self):
        return self._connections.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.join()

    def wait(self):
        self._process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int, help="of the server on this machine")
    parser.add_argument("--listen", type=int, default=0)
    parser.add_argument("--round-trip", type=float, default=0.08)
    parser.add_argument("--rate", type=float, help="bytes per second and connection")
    parser.add_argument("--total-rate", type=float, help="bytes per second of all connections together")
    arguments = parser.parse_args()
    with DelayProxy(arguments.port, arguments.round_trip, arguments.rate, arguments.total_rate, arguments.listen) as proxy:
        print(proxy.port, flush=True)
        try:
            proxy.wait()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
