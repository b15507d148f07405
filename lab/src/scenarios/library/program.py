"""A program whose sockets may change machines. Orders come as lines; each is answered by one."""

import ctypes
import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading

import whimbrel

BLOCK = 4096
# What may be handed over with a socket.
MOST = 1 << 20
# linux/sched.h
CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000


def block(number):
    """What is sent as the block of this number; the far end sends it back."""
    seed = hashlib.sha256(str(number).encode()).digest()
    return seed * (BLOCK // len(seed))


def made():
    """A socket of this host's that the daemon makes: the library makes these by itself."""
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.connect(os.environ["WHIMBREL_RUN_DIR"] + "/whimbrel.sock")
        daemon.sendall(b'{"schema":1,"request":"socket","family":"ipv4","kind":"stream","anchor":"self"}\n')
        answer, descriptors, _, _ = socket.recv_fds(daemon, 4096, 1)
        if not descriptors:
            raise OSError(errno.EPROTO, answer.decode())
        return socket.socket(fileno=descriptors[0])


class Program:
    def __init__(self, sock=None, position=0):
        self.sock = sock
        self.next = position

    def connect(self, host, port, anchor="self", manner="open"):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        flags = whimbrel.REQUIRED | (whimbrel.HIDDEN if manner == "hidden" else 0)
        self.sock = whimbrel.socket(family, socket.SOCK_STREAM, anchor=anchor, flags=flags)
        self.sock.connect((host, int(port)))
        return self.sock.getsockname()[1]

    def lease(self, anchor, port):
        """Serves at an anchor's port: the first that connects is talked with."""
        self.server = whimbrel.socket(anchor=anchor, flags=whimbrel.REQUIRED)
        whimbrel.bind(self.server, ("", int(port)))
        self.server.listen()
        return self.server.getsockname()[0]

    def bind_plainly(self, anchor, port):
        """What bind(2) says of a port of an anchor's, which leases nothing."""
        with whimbrel.socket(anchor=anchor, flags=whimbrel.REQUIRED) as sock:
            sock.bind(("", int(port)))
            return sock.getsockname()[1]

    def serve(self, host):
        """Waits for clients at an address of this host, or at all of them."""
        self.sock = whimbrel.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.sock.bind((host, 0))
        self.sock.listen()
        return self.sock.getsockname()[1]

    def meet(self):
        """Takes the next client in the place of the socket that it came to."""
        server = self.sock
        self.sock, _ = server.accept()
        server.close()
        return "x"

    def accept(self):
        self.sock, _ = self.server.accept()
        return "x"

    def dial(self, host, port):
        self.sock = socket.create_connection((host, int(port)))
        return "x"

    def own(self):
        """Its own address, as it knows it."""
        return self.sock.getsockname()[0]

    def echo(self):
        """Sends one block back."""
        got = b""
        while len(got) < BLOCK:
            more = self.sock.recv(BLOCK - len(got))
            if not more:
                raise EOFError("the far end has closed")
            got += more
        self.sock.sendall(got)
        return "x"

    def talk(self, blocks):
        for _ in range(int(blocks)):
            wanted = block(self.next)
            self.sock.sendall(wanted)
            self.heard(wanted)
            self.next += 1
        return self.next

    def ask(self):
        """Sends a block, whose echo is left for later."""
        self.sock.sendall(block(self.next))
        return self.next

    def hear(self):
        self.heard(block(self.next))
        self.next += 1
        return self.next

    def heard(self, wanted):
        got = b""
        while len(got) < len(wanted):
            more = self.sock.recv(len(wanted) - len(got))
            if not more:
                raise EOFError(f"the far end has closed at block {self.next}")
            got += more
        if got != wanted:
            raise ValueError(f"block {self.next} came back as another")

    def uuid(self):
        return whimbrel.uuid(self.sock)

    def export(self):
        return whimbrel.export(self.sock)

    def rebuild(self, name, position):
        import uuid

        self.sock, self.next = whimbrel.rebuild(uuid.UUID(name)), int(position)
        return "x"

    def sockets(self, process):
        return " ".join(str(found.uuid) for found in whimbrel.sockets(int(process)))

    def prepare(self, to, receiver=None):
        whimbrel.prepare(self.sock, to, receiver=receiver, timeout=20)
        return "x"

    def give(self, to, receiver=None, padding="0"):
        state = str(self.next).encode()
        whimbrel.give(self.sock, to, receiver=receiver, state=state.ljust(int(padding)))
        return "x"

    def flood(self, host, port, count, to, receiver):
        """Gives many connections at once, each with all the state that may be. Those that stay are talked on, and closed."""
        stayed = []

        def one(number):
            sock = whimbrel.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.connect((host, int(port)))
            try:
                whimbrel.give(sock, to, receiver=receiver, state=block(number) * (MOST // BLOCK))
            except OSError as error:
                stayed.append(error.strerror.replace(" ", "-"))
                mine = Program(sock, number)
                mine.talk(1)
                mine.close()

        threads = [threading.Thread(target=one, args=(number,)) for number in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f"{int(count) - len(stayed)} {','.join(sorted(set(stayed)))}"

    def drain(self, count):
        """Takes so many sockets, checks the state of each, and talks on it."""
        for _ in range(int(count)):
            received = self.receiver.receive(timeout=20)
            number = next(number for number in range(1000) if received.state[:BLOCK] == block(number))
            if received.state != block(number) * (MOST // BLOCK):
                raise ValueError("the state came as another")
            mine = Program(received.socket, number)
            mine.talk(1)
            mine.close()
        return "x"

    def move(self, process, to):
        """Moves all sockets of a process, as who migrates that does."""
        with whimbrel.move(int(process), to) as moving:
            return " ".join("moved" if outcome.moved else outcome.reason for outcome in moving)

    def bind(self, host, port):
        """Whether somebody else could have a port."""
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.bind((host, int(port)))
        return "x"

    def receive(self, name):
        self.receiver = whimbrel.Receiver(name)
        return "x"

    def received(self):
        received = self.receiver.receive()
        self.sock, self.next = received.socket, int(received.state)
        return received.uuid

    def ask_for_one(self):
        """A socket that the daemon has made."""
        self.sock = made()
        return "x"

    def lone(self):
        """A socket that is connected to nobody."""
        self.sock = whimbrel.socket()
        return "x"

    def decide(self, anchor):
        """Answers one question as the migrator."""
        with whimbrel.Migrator() as migrator:
            print("asked", flush=True)
            question = migrator.next()
            migrator.answer(question, None if anchor == "nobody" else anchor)
            return question.policy

    def close(self):
        self.sock.close()
        return "x"

    def owner(self):
        """Whose the socket is."""
        return os.fstat(self.sock.fileno()).st_uid

    def rebuild_text(self, name):
        """Takes up a socket by what may be the beginning of its name."""
        self.sock = whimbrel.rebuild(name)
        return "x"

    def share(self, host, port):
        """Listens at a port that other sockets of this user may have as well, and says which."""
        self.server = made()
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.server.bind((host, int(port)))
        self.server.listen()
        return self.server.getsockname()[1]

    def leave(self, *addresses):
        """Moves into a network namespace of its own, in which it has these addresses."""
        user, group = os.getuid(), os.getgid()
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "unshare")
        for name, text in [("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")]:
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        for address in addresses:
            subprocess.run(["ip", "addr", "add", address, "dev", "lo"], check=True)
        return "x"

    def listen_at(self, host, port):
        """A socket that listens there, made by the program itself."""
        self.sock = socket.create_server((host, int(port)))
        return "x"

    def connect_at(self, host, port, to, there):
        """A connection between these, made by the program itself."""
        self.server = socket.create_server((to, int(there)))
        self.sock = socket.create_connection((to, int(there)), source_address=(host, int(port)))
        return "x"


def echo(host, count="1"):
    """The far end, which knows nothing of Whimbrel."""

    def serve(sock):
        total = 0
        with sock:
            while data := sock.recv(65536):
                sock.sendall(data)
                total += len(data)
        print("over", total, flush=True)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        print("listens", server.getsockname()[1], flush=True)
        threads = [threading.Thread(target=serve, args=(server.accept()[0],)) for _ in range(int(count))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def main():
    if sys.argv[1:]:
        echo(*sys.argv[1:])
        return
    program = Program()
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            print("did", name, getattr(program, name)(*arguments), flush=True)
        except OSError as error:
            print("failed", name, errno.errorcode.get(error.errno, "?"), error.strerror, flush=True)


main()
