//! Media over UDP.

use super::{End, Program, Sign, table};

table![RTP];

const SESSION: &str = "\
v=0
o=- 0 0 IN IP4 $ADDRESS
s=sound
c=IN IP4 $ADDRESS
t=0 0
m=audio $PORT RTP/AVP 0
";

/// Both ends have connected sockets (symmetric RTP, RFC 4961): others belong to nobody and are left alone (P-35). What is sent while
/// the laptop is away is lost, as ever on UDP.
const RTP: Program = Program {
    name: "rtp",
    description: "ffmpeg sends sound over RTP, another receives it",
    packages: &["ffmpeg"],
    configuration: &[("sdp", SESSION)],
    feed: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        exec ffmpeg -nostdin -hide_banner -loglevel warning -re -f lavfi -i sine=frequency=440:sample_rate=8000 \
            -codec:a pcm_mulaw -f rtp "rtp://$CLIENT:$PORT?localrtpport=$PORT&localrtcpport=$NEXT&connect=1"
    "#,
    client: r#"
        { until ss -Huan "sport = :$PORT" | grep -q .; do sleep 0.05; done; touch "$DIR/ready"; } &
        ffmpeg -nostdin -hide_banner -loglevel warning -protocol_whitelist file,udp,rtp -sdp_flags filter_src -i "$DIR/sdp" \
            -f framecrc -flush_packets 1 - | sed -un 's/^0, *[0-9]*, *\([0-9]*\),.*/count \1/p'
    "#,
    sign: Sign::Climbs("count "),
    end: End::Killed,
    ..Program::USUAL
};
