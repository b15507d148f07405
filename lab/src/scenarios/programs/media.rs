//! Media over UDP.

use super::{End, Move, Program, Sign, table};
use crate::Gateway;

table![RTP, RTP_NAT, VIDEO, WEBRTC, WEBRTC_TURN, WEBRTC_TURN_NAT, WEBRTC_DIRECT, WEBRTC_NAT];

const SESSION: &str = "\
v=0
o=- 0 0 IN IP4 $ADDRESS
s=sound
c=IN IP4 $ADDRESS
t=0 0
m=audio $PORT RTP/AVP 0
";

/// Neither end has connected its sockets. What is sent while the laptop is away is lost, as ever on UDP.
const RTP: Program = Program {
    name: "rtp",
    description: "ffmpeg sends sound over RTP, another receives it",
    packages: &["ffmpeg"],
    configuration: &[("sdp", SESSION)],
    feed: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        exec ffmpeg -nostdin -hide_banner -loglevel warning -re -f lavfi -i sine=frequency=440:sample_rate=8000 \
            -codec:a pcm_mulaw -f rtp "rtp://$CLIENT:$PORT?localrtpport=$PORT&localrtcpport=$NEXT"
    "#,
    client: r#"
        { until ss -Huan "sport = :$PORT" | grep -q .; do sleep 0.05; done; touch "$DIR/ready"; } &
        ffmpeg -nostdin -hide_banner -loglevel warning -protocol_whitelist file,udp,rtp -i "$DIR/sdp" \
            -f framecrc -flush_packets 1 - | sed -un 's/^0, *[0-9]*, *\([0-9]*\),.*/count \1/p'
    "#,
    sign: Sign::Climbs("count "),
    end: End::Killed,
    ..Program::USUAL
};

/// From behind a NAT it is the laptop that sends: nobody else can begin. What arrives is told to it.
const RTP_NAT: Program = Program {
    name: "rtp-nat",
    description: "ffmpeg sends sound over RTP from behind one NAT to behind another",
    gateway: Gateway::Nat { random_ports: true },
    feed: r#"
        { until ss -Huan "sport = :$PORT" | grep -q .; do sleep 0.05; done; touch "$DIR/ready"; } &
        exec ffmpeg -nostdin -hide_banner -loglevel warning -protocol_whitelist file,udp,rtp -i "$DIR/sdp" \
            -f framecrc -flush_packets 1 -y "$DIR/heard"
    "#,
    client: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        ffmpeg -nostdin -hide_banner -loglevel warning -re -f lavfi -i sine=frequency=440:sample_rate=8000 \
            -codec:a pcm_mulaw -f rtp "rtp://$ADDRESS:$PORT?localrtpport=$PORT&localrtcpport=$NEXT" >&2 &
        until [ -e "$DIR/heard" ]; do sleep 0.05; done
        tail -f -n +1 "$DIR/heard" | sed -un 's/^0, *[0-9]*, *\([0-9]*\),.*/count \1/p'
    "#,
    moves: &[Move::Client, Move::Nat],
    ..RTP
};

const PICTURES: &str = "\
v=0
o=- 0 0 IN IP4 $ADDRESS
s=pictures
c=IN IP4 $ADDRESS
t=0 0
m=video $PORT RTP/AVP 96
a=rtpmap:96 MP4V-ES/90000
a=fmtp:96 profile-level-id=1; config=000001B001000001B58913000001000000012000C48D8AEE053C04641443000001B24C61766335392E33372E313030
";

/// A video each way, as in a conference: what the server gets is a sign of life too. Each direction has ports of its
/// own, which are connected to one another (symmetric RTP, RFC 4961).
const VIDEO: Program = Program {
    name: "rtp-video",
    description: "ffmpeg sends pictures over RTP both ways",
    packages: &["ffmpeg"],
    configuration: &[("down.sdp", PICTURES)],
    prepare: r#"
        # The other way: from the laptop, ten ports further.
        sed -e "s/IP4 .*/IP4 $CLIENT/" -e "s/^m=video [0-9]*/m=video $((PORT + 10))/" "$DIR/down.sdp" >"$DIR/up.sdp"
    "#,
    feed: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        ffmpeg -nostdin -hide_banner -loglevel warning -protocol_whitelist file,udp,rtp -sdp_flags filter_src -i "$DIR/up.sdp" \
            -map 0:v -codec copy -f framecrc -flush_packets 1 "$OUT/up" &
        until ss -Huan "sport = :$((PORT + 10))" | grep -q .; do sleep 0.05; done
        touch "$DIR/ready-up"
        exec ffmpeg -nostdin -hide_banner -loglevel warning -re -f lavfi -i testsrc=size=320x240:rate=15 -codec:v mpeg4 -b:v 300k -g 15 \
            -f rtp "rtp://$CLIENT:$PORT?localrtpport=$PORT&localrtcpport=$NEXT&connect=1"
    "#,
    client: r#"
        {
            until ss -Huan "sport = :$PORT" | grep -q .; do sleep 0.05; done
            touch "$DIR/ready"
            until [ -e "$DIR/ready-up" ]; do sleep 0.05; done
            exec ffmpeg -nostdin -hide_banner -loglevel warning -re -f lavfi -i testsrc2=size=320x240:rate=15 -codec:v mpeg4 \
                -b:v 300k -g 15 -f rtp "rtp://$ADDRESS:$((PORT + 10))?localrtpport=$((PORT + 10))&localrtcpport=$((PORT + 11))&connect=1"
        } >&2 &
        ffmpeg -nostdin -hide_banner -loglevel warning -protocol_whitelist file,udp,rtp -sdp_flags filter_src -i "$DIR/down.sdp" \
            -map 0:v -codec copy -f framecrc -flush_packets 1 - | sed -un 's/^0, *[0-9]*, *\([0-9]*\),.*/count \1/p'
    "#,
    sign: Sign::Climbs("count "),
    connections: 2,
    end: End::Killed,
    ..Program::USUAL
};

/// Media that go by way of a TURN server over TCP, as from behind firewalls that let nothing else out.
const WEBRTC: Program = Program {
    name: "webrtc",
    description: "a WebRTC data channel by way of a TURN server, over TCP",
    packages: &["python3-aiortc", "coturn"],
    configuration: &[("peer.py", PEER)],
    server: r#"
        exec turnserver -n --listening-ip="$ADDRESS" --listening-ip=127.0.0.1 --listening-port="$PORT" --relay-ip=127.0.0.1 --allow-loopback-peers --no-cli \
            --no-tls --no-dtls --lt-cred-mech --user=a:b --realm=example.org --log-file=stdout --pidfile="$DIR/pid" \
            --userdb="$DIR/turn"
    "#,
    feed: r#"exec /usr/bin/python3 "$DIR/peer.py" answer relay "turn:127.0.0.1:$PORT?transport=tcp""#,
    client: r#"exec /usr/bin/python3 "$DIR/peer.py" ask relay "turn:$ADDRESS:$PORT?transport=tcp""#,
    sign: Sign::Counts("count "),
    end: End::Killed,
    ..Program::USUAL
};

/// The same over UDP: coturn's sockets take datagrams from everybody, and several share a port (SO_REUSEPORT).
const WEBRTC_TURN: Program = Program {
    name: "webrtc-turn-udp",
    description: "a WebRTC data channel by way of a TURN server, over UDP",
    feed: r#"exec /usr/bin/python3 "$DIR/peer.py" answer relay "turn:127.0.0.1:$PORT?transport=udp""#,
    client: r#"exec /usr/bin/python3 "$DIR/peer.py" ask relay "turn:$ADDRESS:$PORT?transport=udp""#,
    moves: Move::AWAKE,
    ..WEBRTC
};

const WEBRTC_TURN_NAT: Program = Program {
    name: "webrtc-turn-udp-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..WEBRTC_TURN
};

/// Sockets of ICE are not connected at either end.
const WEBRTC_DIRECT: Program = Program {
    name: "webrtc-direct",
    description: "a WebRTC data channel from host to host",
    packages: &["python3-aiortc"],
    server: "",
    feed: r#"exec /usr/bin/python3 "$DIR/peer.py" answer host"#,
    client: r#"exec /usr/bin/python3 "$DIR/peer.py" ask host"#,
    moves: Move::AWAKE,
    ..WEBRTC
};

/// The client's end is met behind its NAT: the server's learns from checks where it is.
const WEBRTC_NAT: Program = Program {
    name: "webrtc-direct-nat",
    description: "the same from one NAT to another",
    gateway: Gateway::Nat { random_ports: true },
    moves: &[Move::Client, Move::Nat],
    ..WEBRTC_DIRECT
};

/// Either end of a WebRTC connection, by candidates of one kind and IPv4; what they tell one another beforehand is left
/// in `DIR`.
const PEER: &str = r#"
import asyncio, json, os, sys
from aiortc import RTCConfiguration, RTCIceServer, RTCPeerConnection, RTCSessionDescription

def put(name, description):
    lines = description.sdp.splitlines(keepends=True)
    wanted = lambda words: words[7] == sys.argv[2] and "." in words[4]
    sdp = "".join(line for line in lines if "a=candidate" not in line or wanted(line.split()))
    with open("$DIR/" + name + ".new", "w") as file:
        json.dump({"sdp": sdp, "type": description.type}, file)
    os.rename("$DIR/" + name + ".new", "$DIR/" + name)

async def get(name):
    while not os.path.exists("$DIR/" + name):
        await asyncio.sleep(0.05)
    with open("$DIR/" + name) as file:
        return RTCSessionDescription(**json.load(file))

async def count(channel):
    n = 0
    while True:
        n += 1
        channel.send(f"count {n}")
        await asyncio.sleep(0.05)

async def main():
    ask = sys.argv[1] == "ask"
    turn = [RTCIceServer(urls=url, username="a", credential="b") for url in sys.argv[3:]]
    connection = RTCPeerConnection(RTCConfiguration(iceServers=turn))
    connection.on("connectionstatechange", lambda: print(connection.connectionState, file=sys.stderr, flush=True))
    if ask:
        channel = connection.createDataChannel("numbers")
        channel.on("message", lambda message: print(message, flush=True))
        await connection.setLocalDescription(await connection.createOffer())
        put("offer", connection.localDescription)
        await connection.setRemoteDescription(await get("answer"))
    else:
        connection.on("datachannel", lambda channel: asyncio.ensure_future(count(channel)))
        await connection.setRemoteDescription(await get("offer"))
        await connection.setLocalDescription(await connection.createAnswer())
        put("answer", connection.localDescription)
    await asyncio.Future()

asyncio.run(main())
"#;
