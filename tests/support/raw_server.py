"""A server that says whatever a test wants, byte by byte, and need not end.

    def drip(send, request):              # `request`: the head as it came; `send` raises when the client has gone
        send(b"HTTP/1.1 403 Forbidden\\r\\n\\r\\n")
        while True:
            send(b"x"); time.sleep(0.4)

    with RawServer(drip) as server:
        ... server.url ... server.requests ...

Each connection is read to the end of one head, answered and closed. Standard library only.
"""

import socket
import threading


class RawServer:
    def __init__(self, answer, context=None):
        """`context`: an ssl.SSLContext, for https."""
        self.answer, self.context = answer, context
        self.requests = []
        self.sent = 0  # bytes, in all
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.listener.getsockname()[1]
        self.url = ("https://" if context else "http://") + self.address

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        while True:
            try:
                connection = self.listener.accept()[0]
            except OSError:
                return
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        try:
            with self.context.wrap_socket(connection, server_side=True) if self.context else connection as connection:
                connection.settimeout(60)
                head = b""
                while b"\r\n\r\n" not in head:
                    piece = connection.recv(65536)
                    if not piece:
                        return
                    head += piece
                self.requests.append(head.decode("latin-1"))

                def send(data):
                    connection.sendall(data)
                    self.sent += len(data)
                self.answer(send, self.requests[-1])
        except OSError:  # the client has gone
            pass
