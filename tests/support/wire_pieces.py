"""What the test servers (range_server, hub_server) do alike: threads that outlive nothing, bodies at a rate, broken
connections. Standard library only."""

import http.server
import socket
import struct
import sys
import threading
import time

PIECE_BYTES = 64 * 1024


class TestServer(http.server.ThreadingHTTPServer):
    """A server whose threads do not keep the test from ending."""
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def start(self):
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self):
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        """A client that goes away in the middle is the tests' daily bread; all else is not_expected(), so is a file that was
        taken away under the server."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError) or isinstance(error, FileNotFoundError):
            self.not_expected(request, client_address)

    def not_expected(self, request, client_address):
        super().handle_error(request, client_address)


class TestHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 60

    def send_paced(self, read, begin, end, rate_now, flipped, entry):
        """Bytes [begin, end) that `read(at, count)` gives, at `rate_now()` bytes per second (None: as fast as may be), asked
        anew for every piece; the byte at `flipped` with one bit changed. entry.sent counts."""
        at = begin
        while at < end:
            rate = rate_now()
            # Small pieces of a slow answer, so that it flows evenly.
            piece = min(PIECE_BYTES, end - at, max(1, int(rate / 50)) if rate else PIECE_BYTES)
            due = time.monotonic() + (piece / rate if rate else 0)
            data = bytearray(read(at, piece))
            if at <= flipped < at + piece:
                data[flipped - at] ^= 1
            self.wfile.write(data)
            at += piece
            entry.sent = at - begin
            time.sleep(max(0.0, due - time.monotonic()))

    def hang_up(self, with_reset):
        self.close_connection = True
        if with_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()

    def log_message(self, *_):
        pass


def strikes(fault, random, size, begin):
    """Whether a fault that fits strikes a request with `size` bytes of body (from byte `begin` of a file); counts it if so.
    To be called under the lock of the list of faults."""
    if size < fault.min_bytes:
        return False
    if fault.kind == "corrupt" and not begin <= int(fault.options.get("at", begin)) < begin + size:
        return False
    if fault.times is not None and fault.struck >= fault.times:
        return False
    fault.matched += 1
    if fault.matched <= fault.skip or (fault.matched - fault.skip) % fault.every:
        return False
    if random.random() >= fault.chance:
        return False
    fault.struck += 1
    return True
