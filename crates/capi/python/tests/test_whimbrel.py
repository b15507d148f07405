"""Against a daemon that says what daemons say (crates/capi/tests/support)."""

import errno
import os
import select
import socket
import threading
import unittest

import whimbrel


def connected(kind=whimbrel.socket):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = kind(socket.AF_INET, socket.SOCK_STREAM)
        client.connect(server.getsockname())
        return client, server.accept()[0]


class Calls(unittest.TestCase):
    def test_sockets_are_sockets(self):
        client, other = connected()
        with client, other:
            client.sendall(b"hello")
            self.assertEqual(other.recv(5), b"hello")
            self.assertFalse(client.get_inheritable())
        with whimbrel.socket(socket.AF_INET6, socket.SOCK_DGRAM, anchor="none") as six:
            whimbrel.bind(six, ("::1", 0))
            self.assertEqual(six.getsockname()[0], "::1")
        with whimbrel.socket() as one, whimbrel.socket() as two:
            whimbrel.bind(one, ("127.0.0.1", 0))
            one.listen()
            with self.assertRaises(OSError) as failed:
                whimbrel.bind(two, one.getsockname())
            self.assertEqual(failed.exception.errno, errno.EADDRINUSE)

    def test_giving_and_receiving(self):
        with whimbrel.Receiver("python") as receiver:
            with self.assertRaises(BlockingIOError):
                receiver.receive(timeout=0)
            client, other = connected()
            name, far = whimbrel.uuid(client), client.getpeername()
            other.sendall(b"unread")
            whimbrel.prepare(client, "there", receiver="python")
            whimbrel.give(client, "there", receiver="python", state=b"frame\0 17")
            self.assertEqual(client.fileno(), -1)
            self.assertTrue(select.select([receiver], [], [], 10)[0])
            received = next(receiver)
            with received.socket as sock, other:
                self.assertEqual((received.uuid, received.state), (name, b"frame\0 17"))
                self.assertEqual(received.host[:4], "uM5a")
                self.assertEqual((sock.family, sock.getpeername()), (socket.AF_INET, far))
                self.assertEqual(sock.recv(6), b"unread")
        with self.assertRaises(ValueError):
            receiver.receive()

    def test_what_stays_stays_open(self):
        client, other = connected()
        with client, other:
            with self.assertRaisesRegex(OSError, "there is no room there") as failed:
                whimbrel.give(client, "full")
            self.assertEqual(failed.exception.errno, errno.ECANCELED)
            with self.assertRaisesRegex(OSError, "there is no room there") as failed:
                whimbrel.prepare(client, "full", timeout=10)
            self.assertEqual(failed.exception.errno, errno.ECANCELED)
            client.sendall(b"x")
            with self.assertRaises(FileNotFoundError):
                whimbrel.prepare(client, "nowhere")
            with self.assertRaises(FileNotFoundError):
                whimbrel.give(client, "nowhere")
            with self.assertRaises(OSError) as failed:
                whimbrel.give(client, "there", state=bytes((1 << 20) + 1))
            self.assertEqual(failed.exception.errno, errno.EMSGSIZE)

    def test_exporting_and_rebuilding(self):
        client, other = connected()
        name = whimbrel.export(client)
        client.close()
        with whimbrel.rebuild(name) as again, other:
            again.sendall(b"x")
            self.assertEqual(other.recv(1), b"x")
            with self.assertRaises(FileNotFoundError):
                whimbrel.rebuild(name)

    def test_rebuilding_by_text(self):
        client, other = connected()
        name = whimbrel.export(client)
        client.close()
        with whimbrel.rebuild(str(name)) as again, other:
            again.sendall(b"x")
            self.assertEqual(other.recv(1), b"x")
            with self.assertRaises(FileNotFoundError):
                whimbrel.rebuild(str(name))
        with self.assertRaises(FileNotFoundError):
            whimbrel.rebuild("no name")

    def test_moving_a_process(self):
        found = whimbrel.sockets(os.getpid())
        self.assertEqual([each.descriptor for each in found], [3, 4])
        self.assertEqual(found[0].remote, ("203.0.113.5", 443))
        self.assertIsNone(found[0].reason)
        with whimbrel.move(os.getpid(), "there") as moving:
            outcomes = list(moving)
        self.assertEqual([outcome.moved for outcome in outcomes], [True, False])
        self.assertEqual(outcomes[0].local, ("192.0.2.10", 51514))
        self.assertEqual(outcomes[1].reason, "there is no room there")

    def test_being_asked_for_anchors(self):
        with whimbrel.Migrator() as migrator:
            made = []

            def ask():
                made.append(whimbrel.socket(anchor="policy:7", flags=whimbrel.REQUIRED))

            asker = threading.Thread(target=ask)
            asker.start()
            question = migrator.next(timeout=20)
            self.assertEqual((question.policy, question.process), (7, os.getpid()))
            migrator.answer(question, "there")
            asker.join()
            made[0].close()

    def test_what_is_no_socket(self):
        with open("/dev/null", "rb") as file, self.assertRaises(OSError) as failed:
            whimbrel.uuid(file)
        self.assertEqual(failed.exception.errno, errno.ENOTSOCK)
        with self.assertRaises(OSError) as failed:
            whimbrel.uuid(-1)
        self.assertEqual(failed.exception.errno, errno.EBADF)


if __name__ == "__main__":
    unittest.main()
