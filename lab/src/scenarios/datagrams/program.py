"""A server with one UDP socket, and many clients of it, as games have them; neither knows of Whimbrel.

server ADDRESS          echoes what comes, twice, with the name of who sent it
clients ADDRESS PORT COUNT KIND
                        KIND: connected, or not (each client has a socket of its own all the same)

Orders by lines of the input: `all` is answered once each client has had an echo of something that it sent after the
order and the server has taken for that of the same client as ever, with how long the slowest took, in milliseconds, and
how many were taken for another's so far.
"""

import hashlib
import selectors
import socket
import sys
import time


UDP_SEGMENT = 103


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def content(client, number):
    """Of different lengths, and nobody else's."""
    seed = f"{client}.{number}".encode()
    return seed + b" " + hashlib.sha256(seed).digest() * (1 + (client + number) % 30)


def server(address):
    waits = socket.socket(family(address), socket.SOCK_DGRAM)
    waits.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    waits.bind((address, 0))
    print("ready", waits.getsockname()[1], flush=True)
    while True:
        data, sender = waits.recvfrom(65536)
        echo = f"{sender[0]} {sender[1]}\n".encode() + data
        # Twice, and as one for the kernel to cut (UDP_SEGMENT), as servers of QUIC do.
        cut = (socket.SOL_UDP, UDP_SEGMENT, len(echo).to_bytes(2, sys.byteorder))
        waits.sendmsg([echo, echo], [cut], 0, sender)


class Client:
    def __init__(self, number, to, connected):
        self.number, self.to, self.sent, self.named, self.strays = number, to, 0, None, 0
        self.socket = socket.socket(family(to[0]), socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.at = {}
        self.heard = 0.0
        if connected:
            self.socket.connect(to)
        self.connected = connected

    def send(self):
        data = content(self.number, self.sent)
        self.at[self.sent] = time.monotonic()
        self.at.pop(self.sent - 1000, None)
        self.sent += 1
        try:
            if self.connected:
                self.socket.send(data)
            else:
                self.socket.sendto(data, self.to)
        except OSError:
            # No network for a moment.
            pass

    def take(self):
        """When what is answered was sent."""
        try:
            data, sender = self.socket.recvfrom(65536)
        except OSError:
            return
        if sender[:2] != self.to:
            raise SystemExit(f"client {self.number}: {sender} has answered, not {self.to}")
        named, echo = data.split(b"\n", 1)
        number = int(echo.split(b" ", 1)[0].split(b".")[1])
        if echo != content(self.number, number):
            raise SystemExit(f"client {self.number}: not what it sent: {echo[:40]}")
        self.named = self.named or named
        if self.named != named:
            # The kernel knows a new address before anybody else does.
            self.strays += 1
            return
        self.heard = max(self.heard, self.at.get(number, 0.0))


def clients(to, count, connected):
    watch = selectors.DefaultSelector()
    watch.register(sys.stdin, selectors.EVENT_READ)
    every = [Client(number, to, connected) for number in range(count)]
    for client in every:
        watch.register(client.socket, selectors.EVENT_READ, client)
    pause, turn, asked = 0.2 / count, 0, None
    due = time.monotonic()
    print("ready", flush=True)
    while True:
        for key, _ in watch.select(max(0.0, due - time.monotonic())):
            if key.data:
                key.data.take()
            elif sys.stdin.readline().strip() == "all":
                asked = time.monotonic()
            else:
                return
        while due <= time.monotonic():
            every[turn].send()
            turn = (turn + 1) % count
            due = max(due + pause, time.monotonic() - 0.1)
        if asked and all(client.heard > asked for client in every):
            strays = sum(client.strays for client in every)
            print("all", round((time.monotonic() - asked) * 1000), strays, flush=True)
            asked = None


if sys.argv[1] == "server":
    server(sys.argv[2])
else:
    clients((sys.argv[2], int(sys.argv[3])), int(sys.argv[4]), sys.argv[5] == "connected")
