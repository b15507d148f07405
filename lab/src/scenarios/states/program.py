"""Sockets in any state, by order: whoever has one end of a connection, and whoever has it later. Orders come as lines, each is answered by one.

What one end says is bytes of a fixed pattern, or datagrams of it, so that the other knows what has to come next.
"""

import errno
import hashlib
import socket
import struct
import sys
import threading
import time

import whimbrel

# Of a length that nothing else is a multiple of, so that no byte is taken for a later one.
PATTERN = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(2048))[:65521]
DATAGRAM = 100
PATIENCE = 20
# linux/udp.h
UDP_CORK = 1


def pattern(position, length):
    start = position % len(PATTERN)
    repeated = PATTERN * ((start + length) // len(PATTERN) + 1)
    return repeated[start : start + length]


def datagram(number):
    return pattern(number * DATAGRAM, DATAGRAM)


def start(what, *arguments):
    thread = threading.Thread(target=what, args=arguments, daemon=True)
    thread.start()
    return thread


def echo(sock):
    """Gives back what the other end says, until that has ended."""
    sock.settimeout(None)
    try:
        with sock:
            while got := sock.recv(65536):
                sock.sendall(got)
    except OSError:
        # It has gone elsewhere.
        pass


def question(number):
    return struct.pack("!I", number) + datagram(number)


class Talk:
    """A socket, and how far each end has come."""

    def __init__(self, sock, said=0, heard=0):
        self.sock, self.said, self.heard = sock, said, heard
        sock.settimeout(PATIENCE)

    def datagrams(self):
        return self.sock.type == socket.SOCK_DGRAM


class Program:
    def __init__(self):
        self.talks, self.servers = {}, {}
        self.answered_to, self.asking, self.askers, self.wrong = {}, {}, {}, None
        self.attended_to = 0

    def listen(self, address, port="0", backlog="16", protocol="0"):
        """Listens, for IPv4 as well if the address is that of nobody in IPv6."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        server = socket.socket(family, socket.SOCK_STREAM, int(protocol))
        if address == "::":
            server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((address, int(port)))
        server.listen(int(backlog))
        server.settimeout(PATIENCE)
        self.servers["server"] = server
        return server.getsockname()[1]

    def accept(self, name):
        self.talks[name] = Talk(self.servers["server"].accept()[0])
        return "x"

    def pending(self, count):
        """Waits until so many connections wait to be accepted."""
        until = time.monotonic() + PATIENCE
        while True:
            # tcpi_unacked, which is that of a socket that listens.
            info = self.servers["server"].getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
            (now,) = struct.unpack_from("I", info, 24)
            if now == int(count):
                return now
            if time.monotonic() > until:
                raise ValueError(f"{now} wait")
            time.sleep(0.01)

    def serve(self):
        """Takes a socket that listens."""
        received = self.receiver.receive(timeout=PATIENCE)
        received.socket.settimeout(PATIENCE)
        self.servers["server"] = received.socket
        return received.socket.getsockname()[1]

    def collect(self, count):
        """Takes so many connections, and calls each as its other end."""
        for _ in range(int(count)):
            talk = Talk(self.receiver.receive(timeout=PATIENCE).socket)
            self.talks[talk.sock.getpeername()[1]] = talk
        return "x"

    def called(self, port, name):
        self.talks[name] = self.talks.pop(int(port))
        return "x"

    def attend(self):
        """Accepts whoever comes to the socket that listens, and gives back what each says."""
        server = self.servers["server"]
        server.settimeout(None)

        def accept():
            try:
                while True:
                    sock = server.accept()[0]
                    self.attended_to += 1
                    start(echo, sock)
            except OSError:
                # It has gone elsewhere.
                pass

        self.acceptor = start(accept)
        return "x"

    def left(self):
        """Waits until the socket that listens has gone elsewhere, and lets go of what is left of it."""
        self.acceptor.join(PATIENCE)
        if self.acceptor.is_alive():
            raise ValueError("it is here still")
        return self.leave()

    def attended(self, count):
        """Waits until so many have come to the socket that listens since this was asked last."""
        until = time.monotonic() + PATIENCE
        while self.attended_to < int(count):
            if time.monotonic() > until:
                raise ValueError(f"{self.attended_to} came")
            time.sleep(0.01)
        self.attended_to = 0
        return "x"

    def attend_received(self):
        """Does the same with a socket that listens, and with connections, that come from other hosts."""
        receiver = self.receiver

        def take():
            try:
                while True:
                    sock = receiver.receive().socket
                    if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        self.servers["server"] = sock
                        self.attended_to = 0
                        self.attend()
                    else:
                        start(echo, sock)
            except OSError:
                # The daemon has ended.
                pass

        start(take)
        return "x"

    def keep_calling(self, host, port, callers):
        """Opens connections again and again, and has what it says given back by each."""
        self.calls, self.longest, self.calling = 0, 0, threading.Event()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.callers = [start(self.call, family, host, int(port)) for _ in range(int(callers))]
        return "x"

    def call(self, family, host, port):
        try:
            while not self.calling.is_set():
                begun = time.monotonic()
                with socket.socket(family, socket.SOCK_STREAM) as sock:
                    sock.settimeout(PATIENCE)
                    sock.connect((host, port))
                    said = pattern(self.calls, 3000)
                    sock.sendall(said)
                    sock.shutdown(socket.SHUT_WR)
                    got = b""
                    while more := sock.recv(65536):
                        got += more
                    if got != said:
                        raise ValueError(f"{len(got)} bytes came back, or others")
                self.calls += 1
                self.longest = max(self.longest, time.monotonic() - begun)
        except (OSError, ValueError) as error:
            self.wrong = f"after {self.calls} calls: {error}"

    def stop_calling(self):
        """How many there were, and how long the longest took, in milliseconds."""
        self.calling.set()
        for caller in self.callers:
            caller.join()
        if self.wrong:
            raise ValueError(self.wrong)
        return f"{self.calls} {self.longest * 1e3:.0f}"

    def leave(self):
        """Does not listen any more."""
        self.servers.pop("server").close()
        return "x"

    def connect(self, name, host, port, protocol="0"):
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, int(protocol))
        # It takes less than any socket sends without being acknowledged, so that something is left with the other end.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16384)
        self.talks[name] = Talk(sock)
        sock.connect((host, int(port)))
        return sock.getsockname()[1]

    def bind(self, name, host, port="0"):
        """A UDP socket."""
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind((host, int(port)))
        self.talks[name] = Talk(sock)
        return sock.getsockname()[1]

    def spoil(self, name):
        """Makes a UDP socket one that cannot move, in the way of its name."""
        sock = self.talks[name].sock
        if name == "group":
            member = socket.inet_aton("239.9.8.7") + socket.inet_aton(self.address())
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, member)
        elif name == "device":
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
        elif name == "corked":
            sock.setsockopt(socket.IPPROTO_UDP, UDP_CORK, 1)
        else:
            port = sock.getsockname()[1]
            sock.close()
            pair = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
            for one in pair:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                one.bind(("", port))
            self.talks[name], self.second = Talk(pair[0]), pair[1]
        return "x"

    def address(self):
        """This host's own."""
        probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]

    def answer(self, name, count):
        """Serves so many datagrams: each goes back to where it came from."""
        for _ in range(int(count)):
            self.serve_one(self.talks[name].sock)
        return "x"

    def serve_one(self, sock):
        asked, client = sock.recvfrom(65536)
        if not asked:
            raise ValueError(f"{client} is said to have asked nothing")
        (number,) = struct.unpack_from("!I", asked)
        if asked != question(number):
            raise ValueError(f"{client} asked something else: {asked[:64].hex()}")
        self.answered_to.setdefault(client[1], []).append(number)
        sock.sendto(asked, client)

    def serve_on(self, name):
        """Serves whoever comes, until the socket has gone."""
        self.answered_to = {}
        sock = self.talks[name].sock
        sock.settimeout(None)

        def serve():
            try:
                while True:
                    self.serve_one(sock)
            except OSError:
                pass
            except ValueError as error:
                self.wrong = str(error)

        self.server = threading.Thread(target=serve, daemon=True)
        self.server.start()
        return "x"

    def serve_no_more(self):
        if self.wrong:
            raise ValueError(self.wrong)
        return "x"

    def is_told(self):
        """Waits until whoever serves has been told that the socket has gone."""
        self.server.join(PATIENCE)
        if self.server.is_alive():
            raise ValueError("it still waits for somebody who asks")
        return self.serve_no_more()

    def has_served(self, count):
        """Waits until so many have been."""
        until = time.monotonic() + PATIENCE
        while sum(map(len, self.answered_to.values())) < int(count):
            if time.monotonic() > until:
                raise ValueError(f"{self.answered_to} were served")
            time.sleep(0.01)
        return "x"

    def served(self, port):
        """The numbers of what a client has asked here since `serve_on`."""
        return ",".join(map(str, self.answered_to.get(int(port), []))) or "-"

    def ask(self, name, count):
        talk = self.talks[name]
        for number in range(talk.said, talk.said + int(count)):
            talk.sock.send(question(number))
        talk.said += int(count)
        return talk.said

    def answered(self, name, count):
        """So many have been answered, in whatever order, and none of them twice."""
        talk = self.talks[name]
        right = {question(number) for number in range(talk.heard, int(count))}
        while talk.heard < int(count):
            right.remove(talk.sock.recv(65536))
            talk.heard += 1
        return "x"

    def insist(self, name):
        """Asks until there is an answer, as while nobody is there to carry it."""
        talk = self.talks[name]
        talk.sock.settimeout(0.05)
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                talk.sock.send(question(talk.said))
                talk.sock.recv(65536)
                return "x"
            except OSError:
                pass
        raise ValueError("nobody answers")

    def keep_asking(self, name):
        talk = self.talks[name]
        going = self.asking[name] = threading.Event()

        def ask():
            try:
                while not going.wait(0.002):
                    self.ask(name, 1)
            except OSError as error:
                # Somebody has said that there is nobody.
                self.wrong = str(error)

        first = talk.said
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        self.askers[name] = thread, first
        return "x"

    def stop_asking(self, name):
        """The port, the number that was asked first, and the one that would be asked next."""
        self.asking.pop(name).set()
        thread, first = self.askers.pop(name)
        thread.join()
        if self.wrong:
            raise ValueError(self.wrong)
        talk = self.talks[name]
        return f"{talk.sock.getsockname()[1]} {first} {talk.said}"

    def aim(self, name, host, port):
        """Connects a UDP socket."""
        sock = self.talks[name].sock
        mapped = sock.family == socket.AF_INET6 and ":" not in host
        sock.connect(("::ffff:" + host if mapped else host, int(port)))
        return "x"

    def say(self, name, count):
        talk = self.talks[name]
        if talk.datagrams():
            for number in range(talk.said, talk.said + int(count)):
                talk.sock.send(datagram(number))
        else:
            talk.sock.sendall(pattern(talk.said, int(count)))
        talk.said += int(count)
        return talk.said

    def fill(self, name):
        """Says as much as goes without the other end reading any."""
        talk = self.talks[name]
        talk.sock.setblocking(False)
        try:
            while True:
                talk.said += talk.sock.send(pattern(talk.said, 65536))
        except BlockingIOError:
            pass
        talk.sock.settimeout(PATIENCE)
        return talk.said

    def hear(self, name, until):
        """Reads up to a position, or so many datagrams."""
        talk = self.talks[name]
        while talk.heard < int(until):
            wanted = DATAGRAM if talk.datagrams() else int(until) - talk.heard
            got = talk.sock.recv(min(wanted, 1 << 20) + talk.datagrams())
            if not got:
                raise EOFError(f"it has ended after {talk.heard}")
            right = datagram(talk.heard) if talk.datagrams() else pattern(talk.heard, len(got))
            if got != right:
                raise ValueError(f"what came after {talk.heard} is something else: {got[:64].hex()}")
            talk.heard += 1 if talk.datagrams() else len(got)
        return talk.heard

    def silent(self, name):
        """Nothing waits to be read."""
        sock = self.talks[name].sock
        sock.setblocking(False)
        try:
            got = sock.recv(65536)
        except BlockingIOError:
            sock.settimeout(PATIENCE)
            return "x"
        raise ValueError(f"{len(got)} bytes were there")

    def waiting(self, name):
        """Waits until something can be read, and reads nothing."""
        self.talks[name].sock.recv(1, socket.MSG_PEEK)
        return "x"

    def urge(self, name):
        self.talks[name].sock.send(b"!", socket.MSG_OOB)
        return "x"

    def urged(self, name):
        """Reads the urgent byte that is there."""
        sock = self.talks[name].sock
        # With a time-out it would first be waited for other bytes.
        sock.setblocking(False)
        got = sock.recv(1, socket.MSG_OOB)
        sock.settimeout(PATIENCE)
        return got.decode()

    def finish(self, name):
        self.talks[name].sock.shutdown(socket.SHUT_WR)
        return "x"

    def over(self, name):
        """The other end says no more."""
        if got := self.talks[name].sock.recv(65536):
            raise ValueError(f"{len(got)} bytes came instead of the end")
        return "x"

    def refused(self, name):
        """The other end has reset the connection."""
        try:
            got = self.talks[name].sock.recv(65536)
        except ConnectionResetError:
            return "x"
        raise ValueError(f"{len(got)} bytes came instead of a reset")

    def close(self, name):
        self.talks.pop(name).sock.close()
        return "x"

    def state(self, name, wanted):
        """Waits for a state of TCP (include/net/tcp_states.h)."""
        until = time.monotonic() + PATIENCE
        while True:
            (now,) = struct.unpack_from("B", self.talks[name].sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 8))
            if now == int(wanted):
                return now
            if time.monotonic() > until:
                raise ValueError(f"it is in state {now}")
            time.sleep(0.01)

    def aborted(self, name):
        """A UDP socket has moved: who has what is left of it is told once, and then hears and says nothing."""
        sock = self.talks[name].sock
        sock.setblocking(False)
        told = []
        for act in (lambda: sock.recv(DATAGRAM), lambda: sock.recv(DATAGRAM), lambda: sock.send(b"left behind")):
            try:
                told.append(str(act()))
            except OSError as error:
                told.append(errno.errorcode[error.errno])
        if told != ["ECONNABORTED", "EAGAIN", "EPIPE"]:
            raise ValueError(f"it was told {told}")
        return "x"

    def name(self, name):
        host, port = self.talks[name].sock.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def at(self, name):
        talk = self.talks[name]
        return f"{talk.said} {talk.heard}"

    def give(self, what, to):
        """Hands something over that may be no socket of a connection."""
        if what == "pipe":
            with open("/dev/null", "rb") as file:
                whimbrel.give(file, to)
        elif what == "unix":
            whimbrel.give(socket.socketpair()[0], to)
        elif what == "raw":
            whimbrel.give(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP), to)
        else:
            whimbrel.give(self.talks[what].sock, to)
        return "x"

    def receive(self, label):
        self.receiver = whimbrel.Receiver(label)
        return "x"

    def take(self, name, said, heard):
        """Goes on with a socket that comes."""
        received = self.receiver.receive(timeout=PATIENCE)
        self.talks[name] = Talk(received.socket, int(said), int(heard))
        return "x"


def main():
    program = Program()
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            print("did", name, getattr(program, name)(*arguments), flush=True)
        except OSError as error:
            print("failed", name, errno.errorcode.get(error.errno, "?"), error.strerror or error, flush=True)
        except (ValueError, EOFError, KeyError) as error:
            print("failed", name, error, flush=True)


main()
