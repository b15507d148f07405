//! UDP as programs have it: by sockets that are not connected, at one end or both. Those of media are beside.

use super::{End, Move, Program, Sign, table};
use crate::Gateway;

table![DNS, DNS_NAT, AIOQUIC, AIOQUIC_NAT, WIREGUARD, WIREGUARD_NAT, MOSH, MOSH_NAT];

const NAMED: &str = "\
options {
    directory \"$DIR\";
    listen-on port $PORT { $ADDRESS; };
    listen-on-v6 { none; };
    // It would close the socket of an address that its host has lost.
    automatic-interface-scan no;
    interface-interval 0;
    pid-file none;
    session-keyfile none;
    recursion yes;
    allow-query { any; };
    allow-recursion { any; };
    dnssec-validation no;
    forward only;
    forwarders { 127.0.0.1 port $NEXT; };
    resolver-query-timeout 30000;
};
controls { };
";

/// Whom named asks. For `q7.example` it says `answer-1000007`, and nothing while there is a file `hold`.
const SLOW: &str = r#"
import os, select, socket

waits = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
waits.bind(("127.0.0.1", $NEXT))
open("$DIR/ready", "w").close()
asked = []
while True:
    if select.select([waits], [], [], 0.05)[0]:
        asked.append(waits.recvfrom(4096))
    if os.path.exists("$DIR/hold"):
        continue
    for question, who in asked:
        label = question[13:13 + question[12]]
        end = question.index(0, 12) + 5
        text = b"answer-%d" % (int(label[1:]) + 1000000) if label[1:].isdigit() else b"none"
        # An answer (RFC 1035, 4.1) with one record: of the name at byte 12, TXT, IN, not to be kept.
        answer = question[:2] + b"\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + question[12:end]
        answer += b"\xc0\x0c\x00\x10\x00\x01\x00\x00\x00\x00\x00" + bytes([len(text) + 1, len(text)]) + text
        waits.sendto(answer, who)
    asked = []
"#;

/// Each question is asked from a socket of its own, and answered once a host has moved.
const DNS: Program = Program {
    name: "dig",
    description: "dig waits for BIND, which waits for another server until a host has moved",
    packages: &["bind9-dnsutils", "bind9"],
    configuration: &[("named.conf", NAMED), ("slow.py", SLOW)],
    server: r#"exec named -g -n 1 -c "$DIR/named.conf""#,
    feed: r#"exec /usr/bin/python3 "$DIR/slow.py""#,
    client: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        while read -r n && [ -n "$n" ]; do
            dig +short +tries=1 +timeout=60 -p "$PORT" "@$ADDRESS" TXT "q$n.example"
        done
    "#,
    sign: Sign::Answers("{n}"),
    one_each: true,
    // Nothing new is to be had where the server was.
    moves: &[Move::Nat, Move::Client, Move::Server],
    end: End::Line(""),
    ..Program::USUAL
};

const DNS_NAT: Program = Program {
    name: "dig-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..DNS
};

/// aioquic's `connect` has a socket for both families that is bound to no address; it moves nothing by itself.
const AIOQUIC: Program = Program {
    name: "quic-aioquic",
    description: "a download over QUIC by aioquic, which does not move by itself",
    packages: &["aioquic"],
    configuration: &[("end.py", QUIC_END)],
    prepare: r#"
        head -c 24000000 /dev/urandom >"$FILES/large"
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=server.example.org \
            -keyout "$DIR/key" -out "$DIR/certificate" 2>/dev/null
    "#,
    feed: r#"exec /usr/bin/python3 "$DIR/end.py" serve"#,
    client: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        exec /usr/bin/python3 "$DIR/end.py" fetch
    "#,
    moves: Move::AWAKE,
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};

const AIOQUIC_NAT: Program = Program {
    name: "quic-aioquic-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..AIOQUIC
};

const QUIC_END: &str = r#"
import asyncio, pathlib, ssl, sys
sys.path.insert(0, "/usr/local/lib/whimbrel-test/python")
from aioquic.asyncio import connect, serve
from aioquic.quic.configuration import QuicConfiguration

def configuration(**more):
    return QuicConfiguration(alpn_protocols=["file"], **more)

async def send(reader, writer):
    name = (await reader.readline()).decode().strip()
    writer.write(pathlib.Path("$FILES", name).read_bytes())
    writer.write_eof()

async def server():
    config = configuration(is_client=False)
    config.load_cert_chain("$DIR/certificate", "$DIR/key")
    await serve("$ADDRESS", $PORT, configuration=config,
                stream_handler=lambda reader, writer: asyncio.ensure_future(send(reader, writer)))
    pathlib.Path("$DIR/ready").touch()
    await asyncio.Future()

async def client():
    config = configuration(is_client=True, verify_mode=ssl.CERT_NONE)
    async with connect("$ADDRESS", $PORT, configuration=config) as connection:
        reader, writer = await connection.create_stream()
        writer.write(b"large\n")
        with open("$OUT/large", "wb", buffering=0) as file:
            while data := await reader.read(65536):
                file.write(data)

asyncio.run(server() if sys.argv[1] == "serve" else client())
"#;

/// Begins a script that has a device of WireGuard, `wg0`, and its control socket for itself.
macro_rules! wireguard {
    ($script:literal) => {
        concat!(
            r#"
        exec unshare --mount sh -euc '
            mkdir -p /run/wireguard
            mount -t tmpfs none /run/wireguard
            LOG_LEVEL=error WG_I_PREFER_BUGGY_USERSPACE_TO_POLISHED_KMOD=1 wireguard-go -f wg0 >&2 &
            until [ -S /run/wireguard/wg0.sock ]; do sleep 0.05; done
"#,
            $script,
            "'"
        )
    };
}

/// It moves by itself as well: each end answers where the last authentic datagram came from. So after the server's move
/// its client talks with the new address, and that is another flow. The daemons are not to meet inside.
const WIREGUARD: Program = Program {
    name: "wireguard-go",
    description: "curl fetches a file through wireguard-go at both ends",
    packages: &["wireguard-go", "wireguard-tools", "curl"],
    policy: "[ask]\ndeny = [\"10.99.0.0/24\"]\n",
    prepare: r#"
        head -c 24000000 /dev/urandom >"$FILES/large"
        for end in server client; do
            wg genkey >"$DIR/$end.key"
            wg pubkey <"$DIR/$end.key" >"$DIR/$end.public"
        done 2>/dev/null
    "#,
    feed: wireguard!(
        r#"
            wg set wg0 listen-port "$PORT" private-key "$DIR/server.key" peer "$(cat "$DIR/client.public")" allowed-ips 10.99.0.2/32
            ip address add 10.99.0.1/24 dev wg0
            ip link set wg0 mtu 1420 up
            { until ss -Htln "sport = :$NEXT" | grep -q .; do sleep 0.05; done; touch "$DIR/ready"; } &
            exec /usr/bin/python3 -m http.server --bind 10.99.0.1 --directory "$FILES" "$NEXT" >&2
        "#
    ),
    client: wireguard!(
        r#"
            until [ -e "$DIR/ready" ]; do sleep 0.05; done
            wg set wg0 private-key "$DIR/client.key" peer "$(cat "$DIR/server.public")" endpoint "$ADDRESS:$PORT" allowed-ips 10.99.0.1/32
            ip address add 10.99.0.2/24 dev wg0
            ip link set wg0 mtu 1420 up
            exec curl --silent --show-error --fail --no-buffer --output "$OUT/large" "http://10.99.0.1:$NEXT/large"
        "#
    ),
    moves: &[Move::Client, Move::Server],
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};

const WIREGUARD_NAT: Program = Program {
    name: "wireguard-go-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..WIREGUARD
};

/// mosh follows a client that moves by itself, and no server that does. Every line of the remote program is a line of
/// the screen, so that it is drawn as a whole.
const MOSH: Program = Program {
    name: "mosh",
    description: "a program is typed into over mosh",
    packages: &["mosh"],
    feed: r#"
        export LC_ALL=C.UTF-8 MOSH_SERVER_NETWORK_TMOUT=60
        mosh-server new -i "$ADDRESS" -p "$PORT" -- sh -c '
            stty -echo
            while read -r n && [ -n "$n" ]; do
                sleep 0.5
                echo "answer-$((n + 1000000))"
            done
        ' >"$DIR/mosh.new" 2>&1 </dev/null
        mv "$DIR/mosh.new" "$DIR/mosh"
    "#,
    client: r#"
        until [ -e "$DIR/mosh" ]; do sleep 0.05; done
        MOSH_KEY=$(sed -n 's/^MOSH CONNECT [0-9]* \([^[:space:]]*\).*/\1/p' "$DIR/mosh")
        export MOSH_KEY MOSH_PREDICTION_DISPLAY=never LC_ALL=C.UTF-8 TERM=xterm
        exec script --quiet --flush --command "stty rows 24 cols 80; exec mosh-client $ADDRESS $PORT" /dev/null
    "#,
    sign: Sign::Answers("{n}"),
    moves: Move::AWAKE,
    end: End::Line(""),
    ..Program::USUAL
};

const MOSH_NAT: Program = Program {
    name: "mosh-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..MOSH
};
