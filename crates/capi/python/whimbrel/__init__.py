"""Sockets that can change machines: Python's side of libwhimbrel (whimbrel(3)).

Sockets are those of the module ``socket``: everything works on them. A program that hands a connection to another host:

    sock = whimbrel.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.connect(("203.0.113.5", 443))
    ...
    whimbrel.give(sock, "tablet", receiver="films", state=b"frame 17")

and the one there that takes it:

    with whimbrel.Receiver("films") as receiver:
        for received in receiver:
            go_on(received.socket, received.state)

What fails raises OSError with errno as whimbrel(3) tells, and the daemon's own sentence as its text. All functions may be called from
several threads; those that wait let others run.
"""

import ctypes
import os
import socket as _socket
import sys
import uuid as _uuid
from collections import namedtuple

__all__ = [
    "HIDDEN",
    "Migrator",
    "OpenSocket",
    "Outcome",
    "Question",
    "REQUIRED",
    "Received",
    "Receiver",
    "bind",
    "export",
    "give",
    "move",
    "prepare",
    "rebuild",
    "socket",
    "sockets",
    "uuid",
]

#: For socket(): hosts are not told where it is, beside its anchor.
HIDDEN = 1
#: For socket(): fail where a plain socket would be made.
REQUIRED = 2

#: A socket that has come: the socket, its name, the key of the host that gave it, what the program there gave with it.
Received = namedtuple("Received", "socket uuid host state")
#: What became of a socket that was to be moved: its name, whether it is there now, its addresses, else why not.
Outcome = namedtuple("Outcome", "uuid moved local remote reason")
#: A socket that a process has open. ``reason``: why it cannot be moved, or None.
OpenSocket = namedtuple("OpenSocket", "uuid descriptor family type listening local remote reason")
#: A program has asked for a socket with a policy.
Question = namedtuple("Question", "number policy process name")

_library = ctypes.CDLL(os.environ.get("WHIMBREL_LIBRARY", "libwhimbrel.so.0"), use_errno=True)


class _Uuid(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint8 * 16)]

    def value(self):
        return _uuid.UUID(bytes=bytes(self.bytes))


class _Storage(ctypes.Structure):
    """struct sockaddr_storage: 128 bytes, aligned as a long."""

    _fields_ = [("family", ctypes.c_ushort), ("rest", ctypes.c_char * 118), ("_align", ctypes.c_ulong)]

    def value(self):
        raw = bytes(self)
        port = int.from_bytes(raw[2:4], "big")
        if self.family == _socket.AF_INET:
            return (_socket.inet_ntop(_socket.AF_INET, raw[4:8]), port)
        flow, scope = int.from_bytes(raw[4:8], "big"), int.from_bytes(raw[24:28], sys.byteorder)
        return (_socket.inet_ntop(_socket.AF_INET6, raw[8:24]), port, flow, scope)


class _Received(ctypes.Structure):
    _fields_ = [
        ("socket", ctypes.c_int),
        ("uuid", _Uuid),
        ("host", ctypes.c_char * 64),
        ("local", _Storage),
        ("remote", _Storage),
        ("state", ctypes.POINTER(ctypes.c_uint8)),
        ("state_length", ctypes.c_size_t),
    ]


class _Question(ctypes.Structure):
    _fields_ = [
        ("number", ctypes.c_uint64),
        ("policy", ctypes.c_uint),
        ("process", ctypes.c_int),
        ("name", ctypes.c_char * 16),
    ]


class _SocketInfo(ctypes.Structure):
    _fields_ = [
        ("uuid", _Uuid),
        ("descriptor", ctypes.c_int),
        ("domain", ctypes.c_int),
        ("type", ctypes.c_int),
        ("listening", ctypes.c_int),
        ("local", _Storage),
        ("remote", _Storage),
        ("reason", ctypes.c_char * 256),
    ]


class _Outcome(ctypes.Structure):
    _fields_ = [
        ("uuid", _Uuid),
        ("moved", ctypes.c_int),
        ("local", _Storage),
        ("remote", _Storage),
        ("reason", ctypes.c_char * 256),
    ]


_POINTER, _INT, _TEXT, _UINT, _U64, _SIZE = (
    ctypes.c_void_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_uint,
    ctypes.c_uint64,
    ctypes.c_size_t,
)
for _name, _result, _arguments in (
    ("wb_reason", _TEXT, []),
    ("wb_socket", _INT, [_INT, _INT, _INT, _TEXT, _UINT]),
    ("wb_bind", _INT, [_INT, _TEXT, _UINT]),
    ("wb_uuid_of", _INT, [_INT, _POINTER]),
    ("wb_export", _INT, [_INT, _POINTER]),
    ("wb_rebuild", _INT, [_POINTER]),
    ("wb_rebuild_text", _INT, [_TEXT]),
    ("wb_prepare", _INT, [_INT, _TEXT, _TEXT, _INT]),
    ("wb_give", _INT, [_INT, _TEXT, _TEXT, _TEXT, _SIZE, _INT]),
    ("wb_receiver_open", _POINTER, [_TEXT]),
    ("wb_receiver_fd", _INT, [_POINTER]),
    ("wb_receive", _INT, [_POINTER, _POINTER, _INT]),
    ("wb_received_free", None, [_POINTER]),
    ("wb_receiver_close", None, [_POINTER]),
    ("wb_sockets", _INT, [_INT, _POINTER, _SIZE]),
    ("wb_move_start", _POINTER, [_POINTER, _UINT, _TEXT, _TEXT]),
    ("wb_move_fd", _INT, [_POINTER]),
    ("wb_move_next", _INT, [_POINTER, _POINTER, _INT]),
    ("wb_move_close", None, [_POINTER]),
    ("wb_migrator_open", _POINTER, []),
    ("wb_migrator_fd", _INT, [_POINTER]),
    ("wb_migrator_next", _INT, [_POINTER, _POINTER, _INT]),
    ("wb_migrator_answer", _INT, [_POINTER, _U64, _TEXT]),
    ("wb_migrator_close", None, [_POINTER]),
):
    _function = getattr(_library, _name)
    _function.restype, _function.argtypes = _result, _arguments


def _check(result):
    """A result of the library, where it is none of a failure: -1, or a null pointer."""
    if result is not None and result != -1:
        return result
    number = ctypes.get_errno()
    # The sentence of another thread cannot come between: it is each thread's own.
    reason = (_library.wb_reason() or b"").decode(errors="replace")
    raise OSError(number, reason or os.strerror(number))


def _text(text):
    return None if text is None else text.encode()


def _milliseconds(seconds):
    return -1 if seconds is None else max(0, int(seconds * 1000))


def _descriptor(sock):
    return sock if isinstance(sock, int) else sock.fileno()


def socket(family=_socket.AF_INET, type=_socket.SOCK_STREAM, proto=0, anchor="self", flags=0):
    """A socket that can be moved, or a plain one where no daemon runs. ``anchor`` and ``flags`` as wb_socket()."""
    kind = type | _socket.SOCK_CLOEXEC
    return _socket.socket(fileno=_check(_library.wb_socket(family, kind, proto, _text(anchor), flags)))


def bind(sock, address):
    """As ``sock.bind(address)``; where the socket's anchor is another host, the port is leased there."""
    raw = int(sock.family).to_bytes(2, sys.byteorder) + address[1].to_bytes(2, "big")
    if sock.family == _socket.AF_INET:
        raw += _socket.inet_pton(_socket.AF_INET, address[0] or "0.0.0.0") + bytes(8)
    else:
        raw += bytes(4) + _socket.inet_pton(_socket.AF_INET6, address[0] or "::")
        raw += (address[3] if len(address) > 3 else 0).to_bytes(4, sys.byteorder)
    _check(_library.wb_bind(_descriptor(sock), raw, len(raw)))


def uuid(sock):
    """The name of a socket, which it keeps wherever it goes."""
    name = _Uuid()
    _check(_library.wb_uuid_of(_descriptor(sock), ctypes.byref(name)))
    return name.value()


def export(sock):
    """Has the daemon keep a socket beyond this program's end, for five minutes; gives its name for rebuild()."""
    name = _Uuid()
    _check(_library.wb_export(_descriptor(sock), ctypes.byref(name)))
    return name.value()


def rebuild(name):
    """The socket of this name that waits here: it was exported, or has come from another host.

    ``name``: a uuid.UUID, or its text, of which the first eight digits do where the socket is this user's.
    """
    if isinstance(name, str):
        return _socket.socket(fileno=_check(_library.wb_rebuild_text(_text(name))))
    value = _Uuid.from_buffer_copy(name.bytes)
    return _socket.socket(fileno=_check(_library.wb_rebuild(ctypes.byref(value))))


def prepare(sock, to, receiver=None, timeout=None):
    """Sees to it that the host ``to`` is ready for a connected socket, which goes on meanwhile. ``give`` takes less time then, for half a minute.

    Raises OSError with errno ECANCELED where the host would not take it; its text tells why.
    """
    _check(_library.wb_prepare(_descriptor(sock), _text(to), _text(receiver), _milliseconds(timeout)))


def give(sock, to, receiver=None, state=b"", timeout=None):
    """Hands a socket, with ``state``, to the program that receives as ``receiver`` on the host ``to``, and closes it here.

    Raises OSError with errno ECANCELED where it stayed; its text tells why. The socket is as it was then, and open.
    """
    descriptor = _descriptor(sock)
    state = bytes(state)
    _check(_library.wb_give(descriptor, _text(to), _text(receiver), state, len(state), _milliseconds(timeout)))
    if not isinstance(sock, int):
        sock.close()


class _Handle:
    """What the library has opened: ``close`` or the end of a ``with`` closes it. Readable (``fileno``) when there may be news."""

    def __init__(self, pointer):
        self._pointer = _check(pointer)

    def close(self):
        pointer, self._pointer = self._pointer, None
        if pointer is not None:
            self._close(pointer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_pointer", None) is not None:
            self.close()

    def _open(self):
        if self._pointer is None:
            raise ValueError("it is closed")
        return self._pointer

    def fileno(self):
        return self._fd(self._open())


class Receiver(_Handle):
    """Receives sockets under a name. Iterating waits for the next one without end."""

    _close, _fd = _library.wb_receiver_close, _library.wb_receiver_fd

    def __init__(self, name):
        super().__init__(_library.wb_receiver_open(_text(name)))

    def receive(self, timeout=None):
        """The next socket. BlockingIOError where none has come in so many seconds."""
        got = _Received()
        _check(_library.wb_receive(self._open(), ctypes.byref(got), _milliseconds(timeout)))
        state = ctypes.string_at(got.state, got.state_length)
        host = got.host.decode()
        _library.wb_received_free(ctypes.byref(got))
        return Received(_socket.socket(fileno=got.socket), got.uuid.value(), host, state)

    def __iter__(self):
        return self

    def __next__(self):
        return self.receive()


def sockets(process):
    """The sockets of TCP and UDP that a process has."""
    room = 64
    while True:
        infos = (_SocketInfo * room)()
        count = _check(_library.wb_sockets(process, infos, room))
        if count <= room:
            break
        room = count
    found = []
    for info in infos[:count]:
        remote = info.remote.value()
        found.append(
            OpenSocket(
                info.uuid.value(),
                info.descriptor,
                _socket.AddressFamily(info.domain),
                _socket.SocketKind(info.type),
                bool(info.listening),
                info.local.value(),
                remote if remote[1] else None,
                info.reason.decode(errors="replace") or None,
            )
        )
    return found


class move(_Handle):
    """Moves connections to the host ``to``, or all of a process (its number); an iterator of Outcome, as they are decided.

    ``connections`` names each by an address and port of either end, as text. They move whether or not it is iterated.
    """

    _close, _fd = _library.wb_move_close, _library.wb_move_fd

    def __init__(self, connections, to, receiver=None):
        if isinstance(connections, int):
            connections = [f"pid:{connections}"]
        names = (ctypes.c_char_p * len(connections))(*map(_text, connections))
        super().__init__(_library.wb_move_start(names, len(connections), _text(to), _text(receiver)))

    def next(self, timeout=None):
        """The next Outcome, or None where all is told. BlockingIOError where nothing is decided in so many seconds."""
        outcome = _Outcome()
        if _check(_library.wb_move_next(self._open(), ctypes.byref(outcome), _milliseconds(timeout))) == 0:
            return None
        reason = outcome.reason.decode(errors="replace") or None
        local, remote = outcome.local.value(), outcome.remote.value()
        return Outcome(outcome.uuid.value(), bool(outcome.moved), local, remote, reason)

    def __iter__(self):
        return self

    def __next__(self):
        outcome = self.next()
        if outcome is None:
            raise StopIteration
        return outcome


class Migrator(_Handle):
    """Is asked where sockets with a policy are to be anchored. Iterating waits for the next question without end."""

    _close, _fd = _library.wb_migrator_close, _library.wb_migrator_fd

    def __init__(self):
        super().__init__(_library.wb_migrator_open())

    def next(self, timeout=None):
        """The next Question. BlockingIOError where there is none in so many seconds."""
        asked = _Question()
        _check(_library.wb_migrator_next(self._open(), ctypes.byref(asked), _milliseconds(timeout)))
        return Question(asked.number, asked.policy, asked.process, asked.name.decode(errors="replace"))

    def answer(self, question, anchor):
        """``anchor`` as for socket(), but no policy; None refuses the program."""
        _check(_library.wb_migrator_answer(self._open(), question.number, _text(anchor)))

    def __iter__(self):
        return self

    def __next__(self):
        return self.next()
