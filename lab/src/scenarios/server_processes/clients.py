"""Clients of a server that sends everything back: some that stay, some that come and go, and one of datagrams. Orders come as lines, each is answered
by one."""

import errno
import hashlib
import socket
import struct
import sys
import threading
import time

PATTERN = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(2048))[:65521]
BLOCK = 700
PATIENCE = 20
# Between datagrams.
PACE = 0.02
# It says more than the limit for all (socket(7)).
SO_RCVBUFFORCE = 33
STAYING, COMING = 3, 4
# One in so many that have come stays as well, until there are so many.
EVERY, MOST = 8, 16


def block(number):
    start = number * BLOCK % (len(PATTERN) - BLOCK)
    return PATTERN[start : start + BLOCK]


class Program:
    def __init__(self):
        self.lock, self.over, self.wrong = threading.Lock(), threading.Event(), []
        self.opened, self.exchanged, self.slowest = 0, {}, 0.0
        self.asked, self.answered, self.threads = 0, set(), []
        self.ways = []

    def begin(self, host, port):
        self.server = (host, int(port))
        self.family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for number in range(STAYING):
            self.start(self.stay, self.open(), number)
        for _ in range(COMING):
            self.start(self.come_and_go)
        self.start(self.ask)
        return "x"

    def start(self, what, *arguments):
        def run():
            try:
                what(*arguments)
            except (OSError, EOFError, ValueError) as error:
                self.wrong.append(f"{what.__name__}: {error!r}")

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def open(self):
        begun = time.monotonic()
        sock = socket.socket(self.family, socket.SOCK_STREAM)
        sock.settimeout(PATIENCE)
        sock.connect(self.server)
        with self.lock:
            self.slowest = max(self.slowest, time.monotonic() - begun)
            self.opened += 1
        return sock

    def exchange(self, sock, number):
        sock.sendall(block(number))
        heard = b""
        while len(heard) < BLOCK:
            more = sock.recv(BLOCK - len(heard))
            if not more:
                raise EOFError("the server is gone")
            heard += more
        if heard != block(number):
            raise ValueError(f"block {number} came back as something else")

    def stay(self, sock, name):
        number = 0
        while not self.over.is_set():
            self.exchange(sock, number)
            number += 1
            self.exchanged[name] = number
            time.sleep(0.002)
        self.leave(sock)

    def leave(self, sock):
        sock.shutdown(socket.SHUT_WR)
        if sock.recv(1):
            raise ValueError("more came back than was sent")
        sock.close()

    def come_and_go(self):
        number = 0
        while not self.over.is_set():
            sock = self.open()
            self.exchange(sock, number)
            number += 1
            if number % EVERY == 0 and len(self.threads) < MOST:
                self.start(self.stay, sock, sock.getsockname()[1])
                continue
            self.leave(sock)
            time.sleep(0.005)

    def ask(self):
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        sock.bind(("::" if self.family == socket.AF_INET6 else "0.0.0.0", 0))
        # Room for all answers that come at once.
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
        while not self.over.is_set():
            sock.sendto(struct.pack("!I", self.asked) + block(self.asked), self.server)
            self.asked += 1
            self.hear_until(sock, time.monotonic() + PACE)
        until = time.monotonic() + 3
        while time.monotonic() < until and len(self.answered) < self.asked:
            self.hear_until(sock, time.monotonic() + PACE)

    def hear_until(self, sock, until):
        while (left := until - time.monotonic()) > 0:
            sock.settimeout(left)
            try:
                self.hear(sock)
            except TimeoutError:
                return

    def hear(self, sock):
        answer, _ = sock.recvfrom(65536)
        (number,) = struct.unpack_from("!I", answer)
        if answer[4:] != block(number):
            raise ValueError(f"datagram {number} came back as something else")
        self.answered.add(number)

    def fare(self):
        """How many connections were opened, blocks came back on the slowest of those that stay, datagrams were answered, and were sent."""
        if self.wrong:
            raise ValueError("; ".join(self.wrong))
        with self.lock:
            slowest = min((self.exchanged.get(number, 0) for number in range(STAYING)), default=0)
            return f"{self.opened} {slowest} {len(self.answered)} {self.asked}"

    def opens(self):
        """Opens one connection, as one that has not been a client yet."""
        sock = self.open()
        self.exchange(sock, 0)
        self.leave(sock)
        return "x"

    def opened_back(self, kind):
        """Has the server open a connection to here, which it is to pass on what it is sent by. It comes from the server's address, as the server itself
        thinks too."""
        tcp = kind == "tcp"
        sock = self.open()
        near = socket.socket(self.family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
        near.settimeout(PATIENCE)
        near.bind((sock.getsockname()[0], 0))
        if tcp:
            near.listen()
        sock.sendall(struct.pack("!BH", tcp, near.getsockname()[1]))
        if tcp:
            near, address = near.accept()
            near.settimeout(PATIENCE)
        else:
            hello, address = near.recvfrom(1)
            near.connect(address)
        told = sock.recv(100).decode().split()
        if address[0] != self.server[0] or [address[0], str(address[1])] != told:
            raise ValueError(f"it came from {address}, and the server says {told}")
        self.ways.append((sock, near))
        return self.pass_on()

    def pass_on(self):
        """Sends blocks by all of these, to and fro."""
        for sock, near in self.ways:
            for number in range(4):
                for one, other, what in ((sock, near, number), (near, sock, number + 1)):
                    one.sendall(block(what))
                    heard = b""
                    while len(heard) < BLOCK:
                        more = other.recv(BLOCK - len(heard))
                        if not more:
                            raise EOFError("it is at its end")
                        heard += more
                    if heard != block(what):
                        raise ValueError(f"block {what} came as something else")
        return len(self.ways)

    def address(self, host, port):
        self.server = (host, int(port))
        self.family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return "x"

    def end(self):
        """Ends all of them: how long the slowest took to connect, in milliseconds, and how many datagrams were not answered, of how many."""
        self.over.set()
        for thread in list(self.threads):
            thread.join(PATIENCE)
        if self.wrong:
            raise ValueError("; ".join(self.wrong))
        return f"{self.slowest * 1e3:.0f} {self.asked - len(self.answered)} {self.asked}"


def main():
    program = Program()
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            print("did", name, getattr(program, name)(*arguments), flush=True)
        except OSError as error:
            print("failed", name, errno.errorcode.get(error.errno, "?"), error.strerror or error, flush=True)
        except (ValueError, EOFError) as error:
            print("failed", name, error, flush=True)


main()
