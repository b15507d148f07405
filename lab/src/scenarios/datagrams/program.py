"""A server with one UDP socket, and many clients of it, as games have them; neither knows of Whimbrel.

server ADDRESS PORT     echoes what comes, twice, with the name of who sent it; port 0 is any
clients ADDRESS PORT COUNT KIND [WHO FIRST]
                        KIND: connected, or not (each client has a socket of its own all the same)
                        WHO: what their datagrams begin with, so that nobody takes another's for its own
                        FIRST: port of the first, the others have those after it

spread                  sends by one socket to as many remotes as each line of the input says, `FIRST COUNT`: addresses
                        of 198.18.0.0/15 from that number on
tuples ADDRESS PORT     for each line, `FROM FIRST COUNT RATE`, sends as if by so many sockets of that address, whose
                        ports begin there, so many a second

Orders to clients, by lines of the input: `all` is answered once each client has had an echo of something that it sent
after the order and the server has taken for that of the same client as ever, with how long the slowest took, in
milliseconds, how many were taken for another's so far, and how many were answers to other programs. `name` is answered
with whom the server has taken the first client for, last.
"""

import hashlib
import selectors
import socket
import struct
import sys
import time


UDP_SEGMENT = 103
WHO = sys.argv[6] if len(sys.argv) > 6 else "one"


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def content(client, number):
    """Of different lengths, and nobody else's."""
    seed = f"{WHO}.{client}.{number}".encode()
    return seed + b" " + hashlib.sha256(seed).digest() * (1 + (client + number) % 30)


def server(address, port):
    waits = socket.socket(family(address), socket.SOCK_DGRAM)
    waits.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    waits.bind((address, port))
    print("ready", waits.getsockname()[1], flush=True)
    while True:
        data, sender = waits.recvfrom(65536)
        echo = f"{sender[0]} {sender[1]}\n".encode() + data
        # Twice, and as one for the kernel to cut (UDP_SEGMENT), as servers of QUIC do.
        cut = (socket.SOL_UDP, UDP_SEGMENT, len(echo).to_bytes(2, sys.byteorder))
        waits.sendmsg([echo, echo], [cut], 0, sender)


class Client:
    def __init__(self, number, to, connected, port):
        self.number, self.to, self.sent, self.named, self.strays, self.foreign = number, to, 0, None, 0, 0
        self.last = None
        self.socket = socket.socket(family(to[0]), socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        if port:
            self.socket.bind(("", port))
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
        who, _, number = echo.split(b" ", 1)[0].split(b".")
        if who.decode() != WHO:
            self.foreign += 1
            return
        number = int(number)
        if echo != content(self.number, number):
            raise SystemExit(f"client {self.number}: not what it sent: {echo[:40]}")
        self.named, self.last = self.named or named, named
        if self.named != named:
            # The kernel knows a new address before anybody else does.
            self.strays += 1
            return
        self.heard = max(self.heard, self.at.get(number, 0.0))


def clients(to, count, connected, first):
    watch = selectors.DefaultSelector()
    watch.register(sys.stdin, selectors.EVENT_READ)
    every = [Client(number, to, connected, first and first + number) for number in range(count)]
    for client in every:
        watch.register(client.socket, selectors.EVENT_READ, client)
    pause, turn, asked = 0.2 / count, 0, None
    due = time.monotonic()
    print("ready", flush=True)
    while True:
        for key, _ in watch.select(max(0.0, due - time.monotonic())):
            if key.data:
                key.data.take()
                continue
            order = sys.stdin.readline().strip()
            if order == "all":
                asked = time.monotonic()
            elif order == "name":
                print("name", (every[0].last or b"none").decode(), flush=True)
            else:
                return
        while due <= time.monotonic():
            every[turn].send()
            turn = (turn + 1) % count
            due = max(due + pause, time.monotonic() - 0.1)
        if asked and all(client.heard > asked for client in every):
            strays = sum(client.strays for client in every)
            foreign = sum(client.foreign for client in every)
            print("all", round((time.monotonic() - asked) * 1000), strays, foreign, flush=True)
            asked = None


def spread():
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for line in sys.stdin:
        first, count = map(int, line.split())
        for number in range(first, first + count):
            one.sendto(b"anybody", (socket.inet_ntoa(struct.pack("!I", 0xC6120000 + number)), 4433))
        print("sent", count, flush=True)


def tuples(to, port):
    raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    what = b"somebody.0.0 "
    for line in sys.stdin:
        source, *numbers = line.split()
        first, count, rate = map(int, numbers)
        ends = socket.inet_aton(source) + socket.inet_aton(to)
        # RFC 791; the kernel puts the checksum in. RFC 768: without a checksum.
        header = struct.pack("!BBHHHBBH", 0x45, 0, 28 + len(what), 0, 0, 64, socket.IPPROTO_UDP, 0) + ends
        begun = time.monotonic()
        for number in range(count):
            raw.sendto(header + struct.pack("!HHHH", first + number, port, 8 + len(what), 0) + what, (to, 0))
            if number % 50 == 0:
                time.sleep(max(0.0, begun + number / rate - time.monotonic()))
        print("sent", count, flush=True)


if sys.argv[1] == "server":
    server(sys.argv[2], int(sys.argv[3]))
elif sys.argv[1] == "spread":
    spread()
elif sys.argv[1] == "tuples":
    tuples(sys.argv[2], int(sys.argv[3]))
else:
    first = int(sys.argv[7]) if len(sys.argv) > 7 else 0
    clients((sys.argv[2], int(sys.argv[3])), int(sys.argv[4]), sys.argv[5] == "connected", first)
