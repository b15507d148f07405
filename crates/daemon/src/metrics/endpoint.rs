//! The HTTP endpoint that Prometheus asks for figures.
//!
//! A thread of its own serves one client after the other and asks the control thread by the local API's socket, as
//! `whimbrel metrics` does. A client has little time and little to say, so that it can hold up others, but nothing
//! else.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use whimbrel_ipc::{Client, EXPOSITION_TYPE, exposition};

/// How long a client may take to ask, and again to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// The longest request, in bytes.
const LONGEST: usize = 8 * 1024;

/// After a client could not be taken in: descriptors may be short.
const PAUSE: Duration = Duration::from_secs(1);

/// Where figures are served.
#[derive(Debug)]
pub(crate) struct Endpoint {
    listener: TcpListener,
}

impl Endpoint {
    /// Listens; nobody is answered yet.
    ///
    /// # Errors
    /// When the address is taken or not there.
    pub(crate) fn bind(listen: SocketAddr) -> io::Result<Self> {
        Ok(Self { listener: TcpListener::bind(listen)? })
    }

    /// Answers, for as long as the process lives, with the figures of the daemon in `run_dir`.
    ///
    /// # Errors
    /// When no thread can be started.
    pub(crate) fn serve(self, run_dir: PathBuf) -> io::Result<()> {
        std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
            loop {
                match self.listener.accept() {
                    // Whoever does not listen to the end has only itself to blame.
                    Ok((stream, _)) => drop(serve(stream, &run_dir)),
                    Err(error) => {
                        tracing::debug!(%error, "cannot take in a client of the metrics");
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        })?;
        Ok(())
    }
}

fn serve(mut stream: TcpStream, run_dir: &Path) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !is_whole(&request) && request.len() <= LONGEST {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut chunk)? {
            0 => break,
            count => request.extend_from_slice(&chunk[..count]),
        }
    }
    let text = || {
        let metrics = Client::connect(run_dir).and_then(|mut daemon| daemon.metrics());
        metrics.map(|metrics| exposition(&metrics)).map_err(|error| error.to_string())
    };
    let answer = answer(&request, text);
    let until = Instant::now() + PATIENCE;
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        rest = &rest[stream.write(rest)?..];
    }
    Ok(())
}

/// What is left of a time, which a socket is given.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn is_whole(request: &[u8]) -> bool {
    [&b"\r\n\r\n"[..], b"\n\n"].iter().any(|end| request.windows(end.len()).any(|window| window == *end))
}

/// The response to a request (RFC 9112). `text` finds the figures, or why there are none.
fn answer(request: &[u8], text: impl FnOnce() -> Result<String, String>) -> String {
    let first = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let first = String::from_utf8_lossy(first);
    let words: Vec<&str> = first.trim_end().split(' ').collect();
    let (method, target) = match words.as_slice() {
        [method, target, version] if version.starts_with("HTTP/1.") && is_whole(request) => (*method, *target),
        _ => return response("400 Bad Request", PLAIN, "This is no request.\n", true),
    };
    let head = method == "HEAD";
    if !head && method != "GET" {
        return response("405 Method Not Allowed", "text/plain\r\nAllow: GET, HEAD", "Ask with GET.\n", true);
    }
    if target.split('?').next() != Some("/metrics") {
        return response("404 Not Found", PLAIN, "There is /metrics.\n", !head);
    }
    match text() {
        Ok(text) => response("200 OK", EXPOSITION_TYPE, &text, !head),
        Err(error) => response("503 Service Unavailable", PLAIN, &format!("{error}\n"), !head),
    }
}

const PLAIN: &str = "text/plain; charset=utf-8";

fn response(status: &str, kind: &str, body: &str, whole: bool) -> String {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    if whole { head + body } else { head }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use whimbrel_ipc::{Metric, MetricKind, Reply, reply_to_line, socket_path};

    fn status(request: &str) -> String {
        let answer = answer(request.as_bytes(), || Ok("figures\n".to_owned()));
        answer.split("\r\n").next().unwrap_or_default().to_owned()
    }

    #[test]
    fn requests_are_told_apart() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET /metrics?name=x HTTP/1.0\n\n"), "HTTP/1.1 200 OK");
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), "HTTP/1.1 404 Not Found");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
        for bad in
            ["", "\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics HTTP/1.1\r\n", "GET  /metrics HTTP/1.1\r\n\r\n"]
        {
            assert_eq!(status(bad), "HTTP/1.1 400 Bad Request", "{bad:?}");
        }
    }

    #[test]
    fn a_response_is_as_long_as_it_says() {
        let whole = answer(b"GET /metrics HTTP/1.1\r\n\r\n", || Ok("figures\n".to_owned()));
        let (head, body) = whole.split_once("\r\n\r\n").expect("a head");
        assert!(head.contains("Content-Length: 8") && head.contains(EXPOSITION_TYPE), "{head}");
        assert_eq!(body, "figures\n");
        let head_only = answer(b"HEAD /metrics HTTP/1.1\r\n\r\n", || Ok("figures\n".to_owned()));
        assert_eq!(head_only, format!("{head}\r\n\r\n"));
        let failed = answer(b"GET /metrics HTTP/1.1\r\n\r\n", || Err("gone".to_owned()));
        assert!(failed.starts_with("HTTP/1.1 503 ") && failed.ends_with("gone\n"), "{failed}");
    }

    /// Sends this and reads what comes.
    fn ask(at: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(at).expect("connect");
        // A client that says too much sees a reset.
        let _ = stream.write_all(request);
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn figures_come_from_the_daemon_and_nobody_holds_others_up_for_long() {
        let run_dir = std::env::temp_dir().join(format!("whimbrel-metrics-{}", std::process::id()));
        fs::create_dir_all(&run_dir).expect("a folder");
        let endpoint = Endpoint::bind(([127, 0, 0, 1], 0).into()).expect("bind");
        let at = endpoint.listener.local_addr().expect("an address");
        endpoint.serve(run_dir.clone()).expect("a thread");
        const ASKED: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

        let nobody = ask(at, ASKED);
        assert!(nobody.starts_with("HTTP/1.1 503 ") && nobody.contains("no daemon answers"), "{nobody}");

        let listener = UnixListener::bind(socket_path(&run_dir)).expect("bind");
        let daemon = std::thread::spawn(move || {
            for _ in 0..2 {
                let (stream, _) = listener.accept().expect("a client");
                let mut reader = BufReader::new(stream);
                let mut line = String::new();
                reader.read_line(&mut line).expect("a request");
                assert_eq!(line, "{\"schema\":1,\"request\":\"metrics\"}\n");
                let metrics = vec![Metric::new("whimbrel_test", MetricKind::Gauge, "A test.").value(1.0)];
                let reply = reply_to_line(&Reply::Metrics(metrics)).expect("a line");
                reader.get_mut().write_all(reply.as_bytes()).expect("write");
            }
        });
        let text = "# HELP whimbrel_test A test.\n# TYPE whimbrel_test gauge\nwhimbrel_test 1\n";
        assert!(ask(at, ASKED).ends_with(&format!("\r\n\r\n{text}")));
        // One that says nothing, and one that says too much.
        let silent = TcpStream::connect(at).expect("connect");
        assert!(!ask(at, &vec![b'x'; 4 * LONGEST]).contains("200 OK"));
        assert!(ask(at, ASKED).ends_with(text));
        drop(silent);
        daemon.join().expect("the daemon");
        fs::remove_dir_all(&run_dir).expect("the folder");
    }
}
