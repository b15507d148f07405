"""A server that has nothing but its sockets. It sends back what it is sent, by TCP and by UDP, and takes its time to accept a connection."""

import selectors
import socket
import sys
import time

PAUSE = 0.03
MOST = 65536


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(64)
    datagrams = socket.socket(family, socket.SOCK_DGRAM)
    datagrams.bind((address, port))
    datagrams.setblocking(False)
    selector = selectors.DefaultSelector()
    selector.register(datagrams, selectors.EVENT_READ)
    left, accepts = {}, 0.0
    while True:
        if time.monotonic() >= accepts:
            accepts = time.monotonic() + PAUSE
            listener.setblocking(False)
            try:
                connection, _ = listener.accept()
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
                left[connection] = b""
            except BlockingIOError:
                pass
        for key, events in selector.select(0.005):
            if key.fileobj is datagrams:
                question, asker = datagrams.recvfrom(MOST)
                datagrams.sendto(question, asker)
                continue
            connection = key.fileobj
            if events & selectors.EVENT_READ:
                heard = connection.recv(MOST)
                if not heard and not left[connection]:
                    selector.unregister(connection)
                    del left[connection]
                    connection.close()
                    continue
                left[connection] += heard
            sent = connection.send(left[connection]) if left[connection] else 0
            left[connection] = left[connection][sent:]
            both = selectors.EVENT_READ | (selectors.EVENT_WRITE if left[connection] else 0)
            selector.modify(connection, both)


main()
