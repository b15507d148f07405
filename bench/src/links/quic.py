"""Two ends of QUIC by aioquic: `serve ADDRESS PORT DIRECTORY`, and `fetch ADDRESS PORT FIRST SECOND INTERFACE`.

Each end sends a little every two milliseconds; the client prints when something came, by the monotonic clock.
It prefers the address FIRST, of INTERFACE, and migrates (RFC 9000, section 9) to SECOND when the carrier of
that is lost, or when nothing came for three probe timeouts, and back when the carrier returns. aioquic has all
that a server needs for it.
"""
import asyncio
import pathlib
import socket
import ssl
import struct
import sys
import time

sys.path.insert(0, "/usr/local/lib/whimbrel-test/python")
from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection

EVERY = 0.002
PROBE_TIMEOUTS = 3
# linux/rtnetlink.h, linux/if.h
RTMGRP_LINK, RTM_NEWLINK, IFF_RUNNING = 1, 16, 1 << 6


async def talk(writer, size):
    while True:
        writer.write(bytes(size))
        await asyncio.sleep(EVERY)


async def answer(reader, writer, size):
    sending = asyncio.ensure_future(talk(writer, size))
    while await reader.read(65536):
        pass
    sending.cancel()


async def server(address, port, directory, size):
    directory = pathlib.Path(directory)
    configuration = QuicConfiguration(alpn_protocols=["bench"], is_client=False)
    configuration.load_cert_chain(directory / "certificate", directory / "key")
    tasks = set()

    def handle(reader, writer):
        tasks.add(asyncio.ensure_future(answer(reader, writer, size)))

    await serve(address, port, configuration=configuration, stream_handler=handle)
    print("ready", flush=True)
    await asyncio.Future()


class Client(QuicConnectionProtocol):
    addresses, at, heard, transports = (), 0, 0.0, ()

    def datagram_received(self, data, addr):
        self.heard = self._loop.time()
        super().datagram_received(data, addr)

    async def migrate(self, to):
        if to == self.at and self.transports:
            return
        self.at, self.heard = to, self._loop.time()
        transport, _ = await self._loop.create_datagram_endpoint(lambda: self, local_addr=(self.addresses[to], 0))
        first = not self.transports
        # What is under way to the former one is still heard.
        self.transports = (*self.transports[-1:], transport)
        if not first:
            self.change_connection_id()
            self._quic.send_ping(id(transport))
            self.transmit()

    async def watch(self):
        while True:
            await asyncio.sleep(EVERY)
            if self._loop.time() - self.heard > PROBE_TIMEOUTS * self._quic._loss.get_probe_timeout():
                await self.migrate(1 - self.at)

    def watch_carrier(self, interface):
        events = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        events.bind((0, RTMGRP_LINK))
        events.setblocking(False)
        index = socket.if_nametoindex(interface)

        def readable():
            data = events.recv(65536)
            while len(data) >= 32:
                length, kind = struct.unpack_from("=IH", data)
                if kind == RTM_NEWLINK and struct.unpack_from("=i", data, 20)[0] == index:
                    running = struct.unpack_from("=I", data, 24)[0] & IFF_RUNNING
                    asyncio.ensure_future(self.migrate(0 if running else 1))
                data = data[(length + 3) & ~3:]

        self._loop.add_reader(events, readable)


async def client(address, port, first, second, interface, size):
    configuration = QuicConfiguration(alpn_protocols=["bench"], is_client=True, verify_mode=ssl.CERT_NONE)
    ours = Client(QuicConnection(configuration=configuration))
    ours.addresses = (first, second)
    await ours.migrate(0)
    ours.connect((address, port))
    await ours.wait_connected()
    reader, writer = await ours.create_stream()
    ours.watch_carrier(interface)
    tasks = [asyncio.ensure_future(talk(writer, size)), asyncio.ensure_future(ours.watch())]
    while await reader.read(65536):
        print(time.monotonic_ns(), flush=True)
    del tasks


what, address, port, *rest, size = sys.argv[1:]
asyncio.run((server if what == "serve" else client)(address, int(port), *rest, int(size)))
