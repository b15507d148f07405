//! The web: browsers, a proxy, and what carries it.

use super::{End, Move, Program, Sign, table};

table![HTTP2, WEBSOCKET, BROWSER, W3M, SQUID, QUIC, QUIC_OUTAGE];

/// Files to be fetched, and a certificate.
const SITE: &str = r#"
    head -c 24000000 /dev/urandom >"$FILES/one"
    head -c 12000000 /dev/urandom >"$FILES/two"
    chmod -R a+rX "$FILES"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=server.example.org \
        -addext subjectAltName=DNS:server.example.org -keyout "$DIR/key" -out "$DIR/certificate" 2>/dev/null
"#;

/// Listens in clear at `PORT`, with TLS and HTTP/2 at `NEXT`.
const NGINX: &str = "\
daemon off;
master_process off;
user root;
error_log stderr;
pid $DIR/pid;
events {
    worker_connections 100;
}
http {
    access_log off;
    client_body_temp_path $DIR/body;
    proxy_temp_path $DIR/proxy;
    fastcgi_temp_path $DIR/fastcgi;
    uwsgi_temp_path $DIR/uwsgi;
    scgi_temp_path $DIR/scgi;
    server {
        listen $ADDRESS:$PORT;
        listen $ADDRESS:$NEXT ssl http2;
        root $FILES;
        ssl_certificate $DIR/certificate;
        ssl_certificate_key $DIR/key;
    }
}
";

const NGINX_SERVER: &str = r#"exec nginx -p "$DIR" -c "$DIR/nginx.conf""#;

const HTTP2: Program = Program {
    name: "http2",
    description: "curl fetches two files at once over one HTTP/2 connection",
    packages: &["nginx-light", "curl"],
    configuration: &[("nginx.conf", NGINX)],
    prepare: SITE,
    server: NGINX_SERVER,
    client: r#"
        cd "$OUT"
        url="https://server.example.org:$NEXT"
        exec curl --silent --show-error --fail --http2 --parallel --cacert "$DIR/certificate" --write-out '%{http_version}\n' \
            --resolve "server.example.org:$NEXT:$ADDRESS" --output one "$url/one" --output two "$url/two"
    "#,
    verify: r#"
        cmp "$FILES/one" "$OUT/one"
        exec cmp "$FILES/two" "$OUT/two"
    "#,
    ..Program::USUAL
};

const WEBSOCKET: Program = Program {
    name: "websocket",
    description: "a WebSocket over which the server sends a number twenty times a second",
    packages: &["python3-websockets"],
    server: r#"
        exec /usr/bin/python3 -c '
import asyncio, itertools, os, websockets

async def count(socket):
    for n in itertools.count(1):
        await socket.send(f"count {n}")
        await asyncio.sleep(0.05)

async def main():
    async with websockets.serve(count, os.environ["ADDRESS"], int(os.environ["PORT"]), ping_interval=1):
        await asyncio.Future()

asyncio.run(main())
'
    "#,
    client: r#"
        exec /usr/bin/python3 -c '
import asyncio, os, websockets

async def main():
    async with websockets.connect("ws://{ADDRESS}:{PORT}".format_map(os.environ)) as socket:
        async for message in socket:
            print(message, flush=True)

asyncio.run(main())
'
    "#,
    sign: Sign::Counts("count "),
    end: End::Killed,
    ..Program::USUAL
};

/// The page has an icon of its own, lest the browser asks for one over another connection. It writes what its WebSocket
/// brings to the browser's console, which is the browser's log.
const BROWSER: Program = Program {
    name: "browser",
    description: "Chromium shows a page whose WebSocket brings a number twenty times a second",
    packages: &["chromium", "python3-websockets"],
    server: r#"
        exec /usr/bin/python3 -c '
import asyncio, http, itertools, os, websockets

PAGE = b"""<!doctype html><title>numbers</title><link rel=icon href=data:,><script>
new WebSocket("ws://" + location.host + "/numbers").onmessage = (message) => console.log(message.data);
</script>"""

async def page(path, headers):
    if path != "/numbers":
        return http.HTTPStatus.OK, [("Content-Type", "text/html")], PAGE

async def count(socket):
    for n in itertools.count(1):
        await socket.send(f"count {n}")
        await asyncio.sleep(0.05)

async def main():
    where = os.environ["ADDRESS"], int(os.environ["PORT"])
    async with websockets.serve(count, *where, process_request=page, ping_interval=1):
        await asyncio.Future()

asyncio.run(main())
'
    "#,
    client: r#"
        chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking --no-first-run \
            --user-data-dir="$HOME/profile" --enable-logging=stderr --v=0 --log-level=0 "http://$ADDRESS:$PORT/" 2>&1 |
            sed -un 's/.*CONSOLE.*"\(count [0-9]*\)".*/\1/p'
    "#,
    sign: Sign::Counts("count "),
    end: End::Killed,
    ..Program::USUAL
};

const W3M: Program = Program {
    name: "w3m",
    description: "w3m fetches a page of 24 MB",
    packages: &["nginx-light", "w3m"],
    configuration: &[("nginx.conf", NGINX)],
    prepare: SITE,
    server: NGINX_SERVER,
    client: r#"HOME=$OUT exec w3m -no-cookie -dump_source "http://$ADDRESS:$PORT/one" >"$OUT/one""#,
    verify: r#"exec cmp "$FILES/one" "$OUT/one""#,
    ..Program::USUAL
};

const PROXY: &str = "\
http_port $ADDRESS:$PORT
http_access allow all
cache deny all
cache_mem 8 MB
pinger_enable off
access_log none
cache_log $DIR/squid/log
pid_filename none
coredump_dir $DIR/squid
visible_hostname server.example.org
";

/// The proxy moves, with the browser's connection and not with its own to the origin, which is on the same host.
const SQUID: Program = Program {
    name: "squid",
    description: "curl fetches a file through squid",
    packages: &["squid", "curl"],
    configuration: &[("squid.conf", PROXY)],
    prepare: r#"
        head -c 24000000 /dev/urandom >"$FILES/large"
        chmod -R a+rX "$FILES"
        mkdir "$DIR/squid"
        chown proxy "$DIR/squid"
    "#,
    server: r#"
        /usr/bin/python3 -m http.server --bind 127.0.0.1 --directory "$FILES" "$NEXT" >&2 &
        until ss -Htln "sport = :$NEXT" | grep -q .; do sleep 0.05; done
        exec squid -N -f "$DIR/squid.conf"
    "#,
    client: r#"
        exec curl --silent --show-error --fail --proxy "http://$ADDRESS:$PORT" --noproxy '' --no-buffer \
            --output "$OUT/large" "http://127.0.0.1:$NEXT/large"
    "#,
    verify: r#"exec cmp "$FILES/large" "$OUT/large""#,
    ..Program::USUAL
};

/// The client opens a socket at its new address by itself, eight seconds after its start.
const QUIC: Program = Program {
    name: "quic",
    description: "a download over QUIC, whose client moves the connection by itself",
    packages: &["ngtcp2-server", "ngtcp2-client"],
    prepare: SITE,
    feed: r#"
        { until ss -Hulnp "sport = :$PORT" | grep -q .; do sleep 0.05; done; touch "$DIR/ready"; } &
        exec gtlsserver --quiet --htdocs="$FILES" "$ADDRESS" "$PORT" "$DIR/key" "$DIR/certificate"
    "#,
    client: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        exec gtlsclient --quiet --download="$OUT" --change-local-addr=8s --exit-on-all-streams-close \
            "$ADDRESS" "$PORT" "https://$ADDRESS:$PORT/one"
    "#,
    moves: &[Move::Overlap],
    verify: r#"exec cmp "$FILES/one" "$OUT/one""#,
    ..Program::USUAL
};

/// Either end loses its network and has it again, the laptop suspended meanwhile.
const QUIC_OUTAGE: Program = Program {
    name: "quic-outage",
    description: "a download over QUIC while networks go and come back",
    client: r#"
        until [ -e "$DIR/ready" ]; do sleep 0.05; done
        exec gtlsclient --quiet --download="$OUT" --timeout=60s --exit-on-all-streams-close \
            "$ADDRESS" "$PORT" "https://$ADDRESS:$PORT/one"
    "#,
    moves: &[Move::Outage],
    ..QUIC
};
