"""An end of connections and of datagrams. Orders come as lines; each is answered by one. All that is heard is compared byte for byte."""

import errno
import hashlib
import socket
import sys
import time

IP_MTU_DISCOVER, IP_MTU, IPV6_MTU_DISCOVER, IPV6_MTU = 10, 14, 23, 24
MANNERS = {"dont": 0, "want": 1, "do": 2}
PATIENCE = 15
PAUSE = 0.02


def contents(length):
    return hashlib.shake_128(str(length).encode()).digest(int(length))


def told(sock):
    """What the kernel knows of the way that a connected socket goes."""
    if sock.family == socket.AF_INET6:
        return sock.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU)
    return sock.getsockopt(socket.IPPROTO_IP, IP_MTU)


class Program:
    def __init__(self):
        self.sockets = {}

    def made(self, name, kind, address, port, manner="want"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.settimeout(PATIENCE)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, MANNERS[manner])
        else:
            sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, MANNERS[manner])
        sock.bind((address, int(port)))
        self.sockets[name] = sock
        return sock

    def udp(self, name, address, port, manner="want"):
        return self.made(name, socket.SOCK_DGRAM, address, port, manner).getsockname()[1]

    def connect(self, name, address, port):
        self.sockets[name].connect((address, int(port)))

    def try_send(self, name, length, *to):
        if to:
            self.sockets[name].sendto(contents(length), (to[0], int(to[1])))
        else:
            self.sockets[name].send(contents(length))

    def send(self, name, length, *to):
        for _ in range(10):
            try:
                return self.try_send(name, length, *to)
            except OSError as error:
                # What was heard of those before is reported once each.
                if error.errno != errno.EMSGSIZE:
                    raise
                time.sleep(PAUSE)
        self.try_send(name, length, *to)

    def flood(self, name, length, *to):
        for _ in range(10):
            self.send(name, length, *to)
            time.sleep(0.1)

    def take(self, name, length):
        """The next datagram, whose sender it names. Those of other lengths are what was sent to learn."""
        while True:
            try:
                data, sender = self.sockets[name].recvfrom(1 << 16)
            except OSError as error:
                # What was heard of what it has sent.
                if error.errno != errno.EMSGSIZE:
                    raise
                continue
            if data != contents(len(data)):
                raise ValueError(f"a datagram of {len(data)} bytes is not what was sent")
            if len(data) == int(length):
                return f"{sender[0]} {sender[1]}"

    def learn(self, name, length, *to):
        """Sends until the system knows that so much does not go whole."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                self.try_send(name, length, *to)
            except OSError as error:
                if error.errno == errno.EMSGSIZE:
                    return self.mtu(*to[:1]) if to else told(self.sockets[name])
                raise
            time.sleep(PAUSE)
        raise TimeoutError(errno.ETIMEDOUT, "nothing was heard of it")

    def mtu(self, address):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return told(sock)

    def refused(self, name):
        """Sends until it is told that nobody is there."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            try:
                self.send(name, 1)
            except ConnectionRefusedError:
                return "so it is"
            time.sleep(PAUSE)
        raise TimeoutError(errno.ETIMEDOUT, "nothing was heard of it")

    def close(self, name):
        self.sockets.pop(name).close()

    def listen(self, name, address, port):
        sock = self.made(name, socket.SOCK_STREAM, address, port)
        sock.listen()
        return sock.getsockname()[1]

    def accept(self, name, listener):
        self.sockets[name], peer = self.sockets[listener].accept()
        self.sockets[name].settimeout(PATIENCE)
        return f"{peer[0]} {peer[1]}"

    def open(self, name, address, port):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.sockets[name] = socket.create_connection((address, int(port)), PATIENCE)
        return self.sockets[name].getsockname()[1]

    def push(self, name, length):
        self.sockets[name].sendall(contents(length))

    def pull(self, name, length):
        data = bytearray()
        while len(data) < int(length):
            more = self.sockets[name].recv(1 << 16)
            if not more:
                raise EOFError(f"it ends after {len(data)} bytes")
            data += more
        if bytes(data) != contents(length):
            raise ValueError("it is not what was sent")


def main():
    program = Program()
    print("did start ", flush=True)
    for line in sys.stdin:
        order, *rest = line.split()
        try:
            done = getattr(program, order)(*rest)
            print(f"did {order} {'done' if done is None else done}", flush=True)
        except (OSError, ValueError, EOFError) as error:
            name = errno.errorcode.get(getattr(error, "errno", None) or 0, type(error).__name__)
            print(f"failed {order} {name} {error}", flush=True)


main()
