"""A server that opens a connection to whoever asks, at the port that he says, and passes on what either says."""

import selectors
import socket
import struct
import sys

MOST = 65536


def exactly(sock, count):
    heard = b""
    while len(heard) < count:
        heard += sock.recv(count - len(heard))
    return heard


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is not listener:
                heard = key.fileobj.recv(MOST)
                if heard:
                    key.data.sendall(heard)
                else:
                    selector.unregister(key.fileobj)
                continue
            asker, (there, *_) = listener.accept()
            tcp, at = struct.unpack("!BH", exactly(asker, 3))
            opened = socket.socket(family, socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM)
            opened.connect((there, at))
            if not tcp:
                opened.send(b"x")
            asker.sendall("{} {}".format(*opened.getsockname()).encode())
            selector.register(asker, selectors.EVENT_READ, opened)
            selector.register(opened, selectors.EVENT_READ, asker)


main()
