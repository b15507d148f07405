//! The sockets of a process.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use whimbrel_ipc::{Code, Failure, Family, OpenSocket, SocketKind, Uuid};

use crate::api::socket_names::SocketNames;

/// Lists those of TCP and UDP. Reads each descriptor of the process, so not for the thread that others wait for.
/// `allowed`: whether who asks may look into the process of this number. It is asked once that is held, since another
/// one may have the number by then; and once more at the end: what was found may be of a set-uid program that it runs
/// since. What such a program has and gives up again, with its rights, is closed by then, or the process's own.
///
/// # Errors
/// Where there is no such process, or it may not be looked into.
pub(crate) fn sockets(
    names: &SocketNames,
    pid: u32,
    allowed: impl Fn() -> Result<(), Failure>,
) -> Result<Vec<OpenSocket>, Failure> {
    let unknown = || Failure::new("there is no such process").on(format!("pid:{pid}")).code(Code::Unknown);
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(unknown)?;
    let process = pidfd_open(number, PidfdFlags::empty()).map_err(|_| unknown())?;
    allowed()?;
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|_| unknown())?;
    let is_socket = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|target| target.to_str().is_some_and(|to| to.starts_with("socket:")))
    };
    let numbers =
        entries.flatten().filter(is_socket).filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut numbers: Vec<u32> = numbers.collect();
    numbers.sort_unstable();
    let mut found: BTreeMap<Uuid, OpenSocket> = BTreeMap::new();
    for descriptor in numbers {
        let Ok(raw) = i32::try_from(descriptor) else { continue };
        let socket = match pidfd_getfd(&process, raw, PidfdGetfdFlags::empty()) {
            Ok(socket) => socket,
            // Closed meanwhile.
            Err(rustix::io::Errno::BADF) => continue,
            Err(error) => {
                let what = format!("its descriptors cannot be looked at: {error}");
                return Err(Failure::new(what).on(format!("pid:{pid}")).code(Code::Denied));
            }
        };
        // Others are none of ours.
        let Ok(uuid) = names.of(socket.as_fd()) else { continue };
        match found.entry(uuid) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut().descriptors.push(descriptor),
            std::collections::btree_map::Entry::Vacant(place) => {
                if let Some(open) = look(&socket, uuid, descriptor) {
                    place.insert(open);
                }
            }
        }
    }
    allowed()?;
    let mut found: Vec<OpenSocket> = found.into_values().collect();
    found.sort_by_key(|socket| socket.descriptors.first().copied());
    Ok(found)
}

fn look(socket: &OwnedFd, uuid: Uuid, descriptor: u32) -> Option<OpenSocket> {
    let family = match sockopt::socket_domain(socket).ok()? {
        AddressFamily::INET => Family::Ipv4,
        _ => Family::Ipv6,
    };
    let kind = if sockopt::socket_type(socket).ok()? == SocketType::STREAM {
        SocketKind::Stream
    } else {
        SocketKind::Datagram
    };
    let local = getsockname(socket).ok().and_then(|name| SocketAddr::try_from(name).ok())?;
    let remote = getpeername(socket).ok().flatten().and_then(|name| SocketAddr::try_from(name).ok());
    let listening = sockopt::socket_acceptconn(socket).unwrap_or(false);
    let idle = kind == SocketKind::Stream && remote.is_none() && !listening;
    let reason = idle.then(|| "it is neither connected nor listening".to_owned());
    Some(OpenSocket { uuid, descriptors: vec![descriptor], family, kind, local, remote, listening, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use whimbrel_ipc::Request;

    use crate::api::access;
    use crate::api::server::Credentials;

    #[test]
    fn a_process_s_sockets_are_found_each_once() {
        let names = SocketNames::new(&[7; 32]);
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let twin = client.try_clone().expect("dup");
        let datagrams = UdpSocket::bind("[::1]:0").ok();
        let found = sockets(&names, std::process::id(), || Ok(())).expect("listed");
        let by = |socket: &dyn AsFd| {
            let uuid = names.of(socket.as_fd()).expect("named");
            found.iter().find(|open| open.uuid == uuid).expect("listed").clone()
        };
        let open = by(&client);
        assert_eq!((open.family, open.kind, open.listening), (Family::Ipv4, SocketKind::Stream, false));
        assert_eq!((open.local, open.remote), (client.local_addr().expect("local"), client.peer_addr().ok()));
        assert_eq!(open.descriptors.len(), 2);
        assert_eq!(open, by(&twin));
        assert!(by(&listener).listening);
        if let Some(datagrams) = datagrams {
            assert_eq!((by(&datagrams).family, by(&datagrams).kind), (Family::Ipv6, SocketKind::Datagram));
        }
        assert_eq!(sockets(&names, u32::MAX, || Ok(())).expect_err("nobody").code, Some(Code::Unknown));
        let denied = || Err(Failure::new("not yours").code(Code::Denied));
        assert_eq!(sockets(&names, std::process::id(), denied).expect_err("another's").code, Some(Code::Denied));
    }

    #[test]
    fn nothing_is_told_of_a_set_uid_program_that_the_process_runs_meanwhile() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        const USER: u32 = 65_534;
        let directory = std::env::temp_dir().join(format!("whimbrel-listing-{}", std::process::id()));
        fs::create_dir(&directory).expect("a directory");
        let program = directory.join("sleep");
        fs::copy("/bin/sleep", &program).expect("a copy");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("set-uid");
        let script = format!("read word; exec {} 600", program.display());
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", &script]).uid(USER).gid(USER).stdin(Stdio::piped());
        let mut process = shell.spawn().expect("a process");
        let pid = process.id();
        let (word, asked) = (Cell::new(process.stdin.take()), Cell::new(0));
        let client = Credentials { pid: 1, uid: USER, gid: USER };
        let allowed = || {
            let answer = access::check(&Request::Sockets { pid }, Some(client));
            asked.set(asked.get() + 1);
            if let Some(word) = word.take() {
                // It was asked about its own process, which runs the program from now on.
                drop(word);
                let begun = Instant::now();
                while fs::metadata(format!("/proc/{pid}")).expect("it runs").uid() == USER {
                    assert!(begun.elapsed() < Duration::from_secs(30), "it does not run the program");
                }
            }
            answer
        };
        let told = sockets(&SocketNames::new(&[7; 32]), pid, allowed);
        process.kill().expect("killed");
        process.wait().expect("over");
        fs::remove_dir_all(&directory).expect("removed");
        assert_eq!((told.expect_err("another's").code, asked.get()), (Some(Code::Denied), 2));
    }
}
