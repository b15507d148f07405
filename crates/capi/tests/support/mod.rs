//! A daemon that says what daemons say and does nothing; and the library, as programs find it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use whimbrel_ipc::{
    Code, Failure, Family, Flow, Kept, Lines, MadeSocket, Moved, OpenSocket, PeerName, Process, Received, Reply,
    Request, SocketKind, State, Transport, Uuid, WantedAnchor, reply_to_line, request_from_line, send_line,
    socket_path,
};

const KEY: &str = "uM5ahVGHtdMGk2zVxpGZpaHZ0oTnSYfDwDMLnX1jkEo";

/// A directory of its own that goes with it.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("whimbrel-capi-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Where cargo has put the library: beside the tests.
pub(crate) fn library_directory() -> PathBuf {
    let directory = std::env::current_exe().expect("this test").parent().expect("its directory").to_owned();
    assert!(directory.join("libwhimbrel.so").exists(), "{}", directory.display());
    directory
}

/// For the environment of programs that look for the daemon.
pub(crate) fn found_at(directory: &Directory) -> (OsString, OsString) {
    ("WHIMBREL_RUN_DIR".into(), directory.0.clone().into())
}

#[derive(Default)]
struct Said {
    receivers: HashMap<String, UnixStream>,
    kept: HashMap<Uuid, OwnedFd>,
    migrator: Option<UnixStream>,
    questions: HashMap<u64, UnixStream>,
    number: u64,
}

/// Serves in threads until the test ends.
pub(crate) fn daemon(directory: &Directory) {
    let listener = UnixListener::bind(socket_path(&directory.0)).expect("bind");
    let said = Arc::new(Mutex::new(Said::default()));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let said = Arc::clone(&said);
            std::thread::spawn(move || serve(&stream, &said));
        }
    });
}

fn serve(stream: &UnixStream, said: &Mutex<Said>) {
    let mut lines = Lines::default();
    while lines.read(stream).is_ok_and(|count| count > 0) {
        while let Some(mut line) = lines.take() {
            let request = request_from_line(&line.text).expect("a request");
            assert_eq!(request.descriptors(), line.descriptors.len());
            let mut said = said.lock().expect("lock");
            if let Err(failure) = answer(stream, &mut said, request, line.descriptors.pop()) {
                let _ = say(stream, &Reply::Error(failure), None);
            }
        }
    }
    let mut said = said.lock().expect("lock");
    said.receivers.retain(|_, receiver| receiver.peer_addr().is_ok() && !is_same(receiver, stream));
}

fn is_same(a: &UnixStream, b: &UnixStream) -> bool {
    cookie(a.as_fd()) == cookie(b.as_fd())
}

fn say(stream: &UnixStream, reply: &Reply, with: Option<OwnedFd>) -> io::Result<()> {
    let line = reply_to_line(reply).expect("a line");
    let with: Vec<BorrowedFd<'_>> = with.iter().map(AsFd::as_fd).collect();
    let mut sent = send_line(stream, line.as_bytes(), &with)?;
    while sent < line.len() {
        sent += send_line(stream, &line.as_bytes()[sent..], &[])?;
    }
    Ok(())
}

fn number_option(socket: BorrowedFd<'_>, option: i32) -> Option<i32> {
    let (mut value, mut length) = (0i32, 4);
    // SAFETY: room for a number of the length that is said.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut length)
    };
    (result == 0).then_some(value)
}

fn cookie(socket: BorrowedFd<'_>) -> u64 {
    let (mut value, mut length) = (0u64, 8);
    // SAFETY: room for a number of the length that is said.
    unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    value
}

fn name(socket: BorrowedFd<'_>) -> Result<Uuid, Failure> {
    match number_option(socket, libc::SO_DOMAIN) {
        Some(libc::AF_INET | libc::AF_INET6) => {
            let cookie = cookie(socket);
            let mixed = u128::from(cookie).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
            Ok(Uuid::from_random(mixed.to_be_bytes()))
        }
        Some(_) => Err(Failure::new("no").code(Code::NotSupported)),
        None => Err(Failure::new("no").code(Code::NotASocket)),
    }
}

fn flow(socket: BorrowedFd<'_>) -> Flow {
    let socket = std::net::TcpStream::from(socket.try_clone_to_owned().expect("dup"));
    let local = socket.local_addr().expect("local");
    let remote = socket.peer_addr().unwrap_or(([0, 0, 0, 0], 0).into());
    Flow { transport: Transport::Tcp, local, remote }
}

fn there() -> PeerName {
    PeerName { id: 3, key: KEY.into(), name: None }
}

fn no_room(flow: Flow, uuid: Uuid) -> Reply {
    Reply::Kept(Kept { flow, uuid, reason: "there is no room there".into(), lost: false, unheard: false })
}

fn answer(stream: &UnixStream, said: &mut Said, request: Request, with: Option<OwnedFd>) -> Result<(), Failure> {
    let unknown = || Failure::new("nothing has that name").code(Code::Unknown);
    let ok = |reply: &Reply, with| {
        let _ = say(stream, reply, with);
        Ok(())
    };
    match request {
        Request::Uuid => ok(&Reply::Uuid { uuid: name(with.expect("counted").as_fd())? }, None),
        Request::Export => {
            let socket = with.expect("counted");
            let uuid = name(socket.as_fd())?;
            said.kept.insert(uuid, socket);
            ok(&Reply::Exported { uuid, wait_ms: 300_000 }, None)
        }
        Request::Rebuild { uuid } => {
            let found =
                said.kept.keys().copied().find(|kept| kept.to_string().starts_with(&uuid)).ok_or_else(unknown)?;
            ok(&Reply::Socket(MadeSocket { uuid: found, anchor: "self".into() }), said.kept.remove(&found))
        }
        Request::Receive { name } if said.receivers.contains_key(&name) => {
            Err(Failure::new("somebody has that name").on(name).code(Code::InUse))
        }
        Request::Receive { name } => {
            said.receivers.insert(name.clone(), stream.try_clone().expect("dup"));
            ok(&Reply::Receiving { name }, None)
        }
        Request::Give { to, receiver, state } => give(stream, said, &to, receiver, state, &with.expect("counted")),
        Request::Prepare { to, receiver } => prepare(stream, said, &to, receiver, &with.expect("counted")),
        Request::Sockets { .. } => ok(&Reply::Sockets(vec![open(3), open(4)]), None),
        Request::Move { to, .. } if to == "nowhere" => Err(unknown()),
        Request::Move { .. } => {
            let one = open(3);
            let flow = Flow { transport: Transport::Tcp, local: one.local, remote: one.remote.expect("connected") };
            let _ = say(stream, &Reply::Moved(Moved { flow, uuid: one.uuid, to: there() }), None);
            let _ = say(stream, &no_room(flow, one.uuid), None);
            ok(&Reply::End { newest: 17 }, None)
        }
        Request::Migrator => {
            said.migrator = Some(stream.try_clone().expect("dup"));
            ok(&Reply::Migrator { wait_ms: 2000 }, None)
        }
        Request::Socket { anchor, .. } => {
            let policy = anchor.strip_prefix("policy:").and_then(|policy| policy.parse().ok()).ok_or_else(unknown)?;
            said.number += 1;
            let process = Process { pid: peer_pid(stream), name: "a".into() };
            let wanted = WantedAnchor { question: said.number, policy, process };
            said.questions.insert(said.number, stream.try_clone().expect("dup"));
            let migrator = said.migrator.as_ref().ok_or_else(unknown)?;
            let _ = say(migrator, &Reply::WantedAnchor(wanted), None);
            Ok(())
        }
        Request::Anchor { question, anchor } => {
            let asker = said.questions.remove(&question).expect("asked");
            let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
            let uuid = name(socket.as_fd())?;
            let _ = match anchor {
                Some(anchor) => say(&asker, &Reply::Socket(MadeSocket { uuid, anchor }), Some(socket.into())),
                None => say(&asker, &Reply::Error(Failure::new("no").code(Code::Unavailable)), None),
            };
            Ok(())
        }
        other => panic!("{other:?}"),
    }
}

fn peer_pid(stream: &UnixStream) -> u32 {
    // SAFETY: all zero is a valid value.
    let mut who: libc::ucred = unsafe { std::mem::zeroed() };
    let mut length = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: room for what is asked for.
    unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut who).cast(),
            &raw mut length,
        )
    };
    u32::try_from(who.pid).expect("a process")
}

fn open(descriptor: u32) -> OpenSocket {
    OpenSocket {
        uuid: "0b5f8c1e-42d7-4a63-9c1b-7e35d20f6a98".parse().expect("a name"),
        descriptors: vec![descriptor],
        family: Family::Ipv4,
        kind: SocketKind::Stream,
        local: "192.0.2.10:51514".parse().expect("an address"),
        remote: Some("203.0.113.5:443".parse().expect("an address")),
        listening: false,
        reason: None,
    }
}

fn prepare(
    stream: &UnixStream,
    said: &Said,
    to: &str,
    receiver: Option<String>,
    socket: &OwnedFd,
) -> Result<(), Failure> {
    let uuid = name(socket.as_fd())?;
    let reply = match (to, receiver) {
        ("nowhere", _) => return Err(Failure::new("no such host").on(to).code(Code::Unknown)),
        ("there", Some(receiver)) if said.receivers.contains_key(&receiver) => Reply::Prepared { lasts_ms: 30_000 },
        _ => no_room(flow(socket.as_fd()), uuid),
    };
    let _ = say(stream, &reply, None);
    Ok(())
}

fn give(
    stream: &UnixStream,
    said: &Said,
    to: &str,
    receiver: Option<String>,
    state: State,
    socket: &OwnedFd,
) -> Result<(), Failure> {
    let uuid = name(socket.as_fd())?;
    let flow = flow(socket.as_fd());
    let receiver = receiver.and_then(|receiver| Some((said.receivers.get(&receiver)?, receiver)));
    let reply = match (to, receiver) {
        ("nowhere", _) => return Err(Failure::new("no such host").on(to).code(Code::Unknown)),
        ("there", Some((client, name))) => {
            let received = Received { name, from: there(), flow, uuid, state };
            let _ = say(client, &Reply::Received(Box::new(received)), socket.try_clone().ok());
            Reply::Moved(Moved { flow, uuid, to: there() })
        }
        _ => no_room(flow, uuid),
    };
    let _ = say(stream, &reply, None);
    Ok(())
}
