use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};

use whimbrel_ipc::{EventsQuery, State, reply_from_line, request_to_line, send_line};
use whimbrel_protocol::Time;

use super::*;

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("whimbrel-server-{name}-{}.sock", std::process::id()))
}

fn connect(server: &mut Server) -> (UnixStream, ClientId) {
    let stream = UnixStream::connect(&server.path).expect("connect");
    let id = server.accept(Time::default())[0];
    (stream, id)
}

#[test]
fn requests_may_come_in_pieces_and_many_at_once() {
    let mut server = Server::bind(&socket("pieces"), 0o600).expect("bind");
    assert_eq!(fs::metadata(&server.path).expect("stat").permissions().mode() & 0o777, 0o600);
    let (mut stream, id) = connect(&mut server);
    let line = request_to_line(&Request::Status).expect("line");
    stream.write_all(&line.as_bytes()[..5]).expect("write");
    server.read(id);
    assert!(server.request(id).is_none());
    stream.write_all(&line.as_bytes()[5..]).expect("write");
    stream.write_all(b"nonsense\n").expect("write");
    server.read(id);
    assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Status);
    server.reply(id, &Reply::End { newest: 7 });
    assert!(server.request(id).expect("whole").is_err());
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("read");
    assert_eq!(reply_from_line(&answer).expect("reply"), Reply::End { newest: 7 });
}

#[test]
fn questions_of_who_has_left_are_not_answered_and_what_it_wants_done_is() {
    let mut server = Server::bind(&socket("left"), 0o600).expect("bind");
    for (request, served) in [
        (Request::Connections, false),
        (Request::Events(EventsQuery::default()), false),
        (Request::Resume { connections: Vec::new() }, true),
    ] {
        let (mut stream, id) = connect(&mut server);
        stream.write_all(request_to_line(&request).expect("line").repeat(2).as_bytes()).expect("write");
        server.read(id);
        drop(stream);
        assert_eq!(server.request(id).is_some(), served, "{request:?}");
        assert_eq!(server.clients.contains_key(&id), served, "{request:?}");
    }
}

#[test]
fn an_answer_that_takes_a_while_is_waited_for() {
    let mut server = Server::bind(&socket("late"), 0o600).expect("bind");
    let (mut stream, id) = connect(&mut server);
    let lines = [Request::Connections, Request::Status].map(|request| request_to_line(&request).expect("line"));
    stream.write_all(lines.concat().as_bytes()).expect("write");
    // It says all that it has to say at once, as `nc -N` does.
    stream.shutdown(std::net::Shutdown::Write).expect("shutdown");
    server.read(id);
    assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Connections);
    server.answer_later(id);
    assert!(server.request(id).is_none(), "asked for the next before the answer was there");
    server.write(id);
    assert_eq!(server.interest(id), Some(Interest { readable: false, writable: false }));
    server.reply(id, &Reply::Connections(Vec::new()));
    assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Status);
    server.reply(id, &Reply::End { newest: 7 });
    server.read(id);
    server.line_up(id);
    assert_eq!(server.take_turns(), [id]);
    assert!(server.request(id).is_none());
    assert_eq!(server.interest(id), None, "it has sent all and was answered all");
    let answers: Vec<_> = BufReader::new(stream).lines().map(|line| line.expect("read")).collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert_eq!(reply_from_line(&answers[0]).expect("reply"), Reply::Connections(Vec::new()));
    assert_eq!(reply_from_line(&answers[1]).expect("reply"), Reply::End { newest: 7 });
}

#[test]
fn a_request_without_end_ends_the_client() {
    let mut server = Server::bind(&socket("long"), 0o600).expect("bind");
    let (mut stream, id) = connect(&mut server);
    let chunk = [b'x'; 16 * 1024];
    for _ in 0..=MAX_REQUEST_LINE / chunk.len() {
        stream.write_all(&chunk).expect("write");
        server.read(id);
    }
    server.line_up(id);
    assert_eq!(server.take_turns(), [id]);
    assert!(server.request(id).is_none());
    assert_eq!(server.interest(id), None);
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("read");
    assert!(matches!(reply_from_line(&answer).expect("reply"), Reply::Error(_)));
}

#[test]
fn descriptors_come_with_requests_that_take_them_and_no_others() {
    let mut server = Server::bind(&socket("descriptors"), 0o600).expect("bind");
    let (stream, id) = connect(&mut server);
    let send = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
        send_line(&stream, request_to_line(request).expect("line").as_bytes(), descriptors).expect("sent");
    };
    // One end is handed over; the other one is told when nobody has it any more.
    let (kept, given) = UnixStream::pair().expect("pair");
    let ended = |mut kept: UnixStream| kept.read(&mut [0]).expect("read") == 0;
    send(&Request::Uuid, &[given.as_fd()]);
    send(&Request::Uuid, &[]);
    drop(given);
    server.read(id);
    let asked = server.request(id).expect("whole").expect("valid");
    assert_eq!((asked.request, asked.descriptors.len()), (Request::Uuid, 1));
    drop(asked.descriptors);
    assert!(ended(kept));
    server.read(id);
    let refused = server.request(id).expect("whole").expect_err("none came with it");
    assert_eq!(refused.code, Some(Code::Descriptors));

    let (kept, given) = UnixStream::pair().expect("pair");
    send(&Request::Status, &[given.as_fd()]);
    send(&Request::Peers, &[]);
    drop(given);
    server.read(id);
    let refused = server.request(id).expect("whole").expect_err("it takes none");
    assert_eq!(refused.code, Some(Code::Descriptors));
    assert!(ended(kept));
    server.read(id);
    assert_eq!(server.request(id).expect("whole").expect("valid").request, Request::Peers);
}

#[test]
fn answers_with_descriptors_wait_like_others() {
    let mut server = Server::bind(&socket("with"), 0o600).expect("bind");
    let (stream, id) = connect(&mut server);
    assert_eq!(server.credentials(id).map(|who| who.pid), Some(std::process::id()));
    server.stay(id);
    // More than the socket takes at once, so that the descriptors wait in the middle of it.
    let long = Reply::Error(Failure::new("x".repeat(1 << 20)));
    let (mut inside, given) = UnixStream::pair().expect("pair");
    inside.write_all(b"hello").expect("write");
    drop(inside);
    assert!(server.say(id, &long, Vec::new()));
    assert!(server.say(id, &Reply::End { newest: 1 }, vec![given.into()]));
    assert!(server.say(id, &Reply::End { newest: 2 }, Vec::new()));
    let (mut lines, mut got) = (Lines::default(), Vec::new());
    while got.len() < 3 {
        lines.read(&stream).expect("read");
        server.write(id);
        got.extend(std::iter::from_fn(|| lines.take()));
    }
    assert_eq!(got.iter().map(|line| line.descriptors.len()).collect::<Vec<_>>(), [0, 1, 0]);
    let mut text = String::new();
    let with = got.swap_remove(1).descriptors.remove(0);
    File::from(with).read_to_string(&mut text).expect("read");
    assert_eq!(text, "hello");
    drop(stream);
    server.read(id);
    assert_eq!(server.take_gone(), [id]);
    assert!(server.take_gone().is_empty());
}

#[test]
fn what_must_not_be_lost_is_kept_for_who_does_not_read() {
    let mut server = Server::bind(&socket("hand"), 0o600).expect("bind");
    let (stream, id) = connect(&mut server);
    server.stay(id);
    assert!(!server.is_behind(id));
    let long = Reply::Error(Failure::new("x".repeat(1 << 20)));
    for _ in 0..6 {
        assert!(server.hand(id, &long, vec![stream.try_clone().expect("dup").into()]));
    }
    assert!(server.is_behind(id));
    let (mut lines, mut descriptors) = (Lines::default(), 0);
    while descriptors < 6 {
        lines.read(&stream).expect("read");
        server.write(id);
        descriptors += std::iter::from_fn(|| lines.take()).map(|line| line.descriptors.len()).sum::<usize>();
    }
    assert!(!server.is_behind(id));
}

#[test]
fn those_that_stay_take_no_room_of_those_that_ask_and_who_finds_none_hears_so() {
    let mut server = Server::bind(&socket("room"), 0o600).expect("bind");
    let status = request_to_line(&Request::Status).expect("line");
    let refusal = |server: &mut Server| -> Option<Failure> {
        let (mut stream, id) = connect(server);
        stream.write_all(status.as_bytes()).expect("write");
        server.read(id);
        if server.request(id).is_some() {
            return None;
        }
        assert_eq!(server.interest(id), None, "it stays");
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).expect("read");
        match reply_from_line(&answer).expect("reply") {
            Reply::Error(failure) => Some(failure),
            other => panic!("{other:?}"),
        }
    };
    server.most_staying = CLIENTS + 1;
    let mut staying = Vec::new();
    let full = loop {
        let (stream, id) = connect(&mut server);
        server.clients.get_mut(&id).expect("it").credentials = Some(Credentials { pid: 1, uid: 0, gid: 0 });
        if let Err(full) = server.may_stay(id) {
            server.remove(id);
            break full;
        }
        server.stay(id);
        staying.push(stream);
    };
    assert_eq!(staying.len(), CLIENTS + 1);
    assert_eq!(full.code, Some(Code::TooMany));
    assert_eq!(refusal(&mut server), None, "they take the room of who asks");
    let mut asking = Vec::new();
    // The one that was served is idle now, and gives way.
    while asking.len() < CLIENTS {
        asking.push(connect(&mut server));
        // What they ask for takes a while; who is idle would give way.
        server.answer_later(asking[asking.len() - 1].1);
    }
    assert_eq!(refusal(&mut server).expect("full").code, Some(Code::TooMany));
    assert_eq!(refusal(&mut server).expect("full").code, Some(Code::TooMany));
    let (stream, id) = asking.remove(0);
    server.reply(id, &Reply::End { newest: 1 });
    drop(stream);
    server.read(id);
    assert!(server.request(id).is_none());
    assert_eq!(refusal(&mut server), None, "there is room again");
}

/// Connects as if for this user.
fn connect_as(server: &mut Server, uid: u32) -> (UnixStream, ClientId) {
    let (stream, id) = connect(server);
    server.clients.get_mut(&id).expect("it").credentials = Some(Credentials { pid: 1, uid, gid: uid });
    (stream, id)
}

#[test]
fn idle_clients_of_one_user_do_not_keep_others_out() {
    let mut server = Server::bind(&socket("idle"), 0o600).expect("bind");
    // All clients are of who runs this test; these are taken to be of others.
    let me = rustix::process::geteuid().as_raw();
    let (crowd, other) = (me + 1, me + 2);
    let (_quiet, quiet) = connect_as(&mut server, other);
    let mut idle: Vec<_> = (1..CLIENTS).map(|_| connect_as(&mut server, crowd)).collect();
    // One of them is used; the others are idle for longer.
    let (stream, used) = &mut idle[0];
    stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
    server.read(*used);
    assert!(server.request(*used).is_some());
    server.reply(*used, &Reply::End { newest: 1 });
    let (mut stream, mine) = connect(&mut server);
    assert_eq!(server.take_gone(), [idle[1].1], "of who has most, the one that is idle for longest");
    stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
    server.read(mine);
    assert!(server.request(mine).expect("whole").is_ok(), "it is served");
    // Whoever comes again and again takes the place of its own.
    server.make_room(Some(crowd), Time::default());
    assert_eq!(server.take_gone(), [idle[2].1]);
    assert!(server.interest(quiet).is_some());
    // Nobody gives way to who has more.
    for (_, id) in &idle[3..] {
        server.answer_later(*id);
    }
    server.answer_later(idle[0].1);
    assert!(!server.make_room(Some(crowd), Time::default()));
}

#[test]
fn who_asks_nothing_is_dropped_after_a_while() {
    let mut server = Server::bind(&socket("silent"), 0o600).expect("bind");
    let (_silent, silent) = connect(&mut server);
    let (mut stream, asked) = connect(&mut server);
    stream.write_all(request_to_line(&Request::Status).expect("line").as_bytes()).expect("write");
    server.read(asked);
    assert!(server.request(asked).is_some());
    server.reply(asked, &Reply::End { newest: 1 });
    server.check_again(Time::default() + SILENT / 2);
    assert!(server.take_gone().is_empty());
    server.check_again(Time::default() + SILENT);
    assert_eq!(server.take_gone(), [silent]);
}

#[test]
fn one_user_has_half_of_the_room_for_those_that_stay() {
    let mut server = Server::bind(&socket("staying"), 0o600).expect("bind");
    server.most_staying = 10;
    let me = rustix::process::geteuid().as_raw();
    let mut staying = Vec::new();
    let mut room_of = |server: &mut Server, uid: u32| {
        (0..).find(|_| {
            let (stream, id) = connect_as(server, uid);
            let full = server.may_stay(id).is_err();
            if full {
                server.remove(id)
            } else {
                server.stay(id)
            }
            staying.push(stream);
            full
        })
    };
    assert_eq!(
        (room_of(&mut server, me + 1), room_of(&mut server, me + 2), room_of(&mut server, me)),
        (Some(5), Some(4), Some(1))
    );
}

#[test]
fn a_follower_that_does_not_read_is_dropped() {
    let mut server = Server::bind(&socket("follow"), 0o600).expect("bind");
    let (mut stream, id) = connect(&mut server);
    let follow = Request::Events(EventsQuery { follow: true, ..Default::default() });
    stream.write_all(request_to_line(&follow).expect("line").as_bytes()).expect("write");
    server.read(id);
    assert_eq!(server.request(id).expect("whole").expect("valid").request, follow);
    server.follow(id);
    let record = EventRecord {
        number: 1,
        time: String::new(),
        monotonic_ms: 0,
        kind: "test".into(),
        sentence: "x".repeat(1 << 20),
        fields: serde_json::Map::new(),
    };
    for _ in 0..6 {
        server.tell(&record);
    }
    assert_eq!(server.interest(id), None);
}

/// Asks for something, and is answered with more than its socket takes.
fn answered_at_length(server: &mut Server, stream: &mut UnixStream, id: ClientId) {
    stream.write_all(request_to_line(&Request::Metrics).expect("line").as_bytes()).expect("write");
    server.read(id);
    assert!(server.request(id).expect("whole").is_ok());
    server.reply(id, &Reply::Error(Failure::new("x".repeat(1 << 20))));
    assert_eq!(server.interest(id), Some(Interest { readable: false, writable: true }));
}

#[test]
fn who_does_not_read_its_answers_keeps_nobody_out() {
    let mut server = Server::bind(&socket("unread"), 0o600).expect("bind");
    let me = rustix::process::geteuid().as_raw();
    let mut crowd: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (mut stream, id) = connect_as(&mut server, me + 1 + u32::from(number % 2 == 0));
            answered_at_length(&mut server, &mut stream, id);
            (stream, id)
        })
        .collect();
    assert_eq!(server.place_for(Some(me + 3), Time::default()), Place::Refused, "they may still read");
    server.check_again(Time::default());
    server.check_again(Time::default() + room::UNREAD);
    assert!(server.take_gone().is_empty(), "nobody needs the room");
    assert_eq!(server.place_for(Some(me + 3), Time::default() + room::UNREAD), Place::Served);
    assert_eq!(server.take_gone().len(), 1);
    // Who has read it does not give way.
    let (stream, id) = &mut crowd[CLIENTS - 1];
    let mut lines: Lines = Lines::default();
    while lines.take().is_none() {
        lines.read(&*stream).expect("read");
        server.write(*id);
    }
    assert!(server.clients[id].unread_since.is_none());
}

#[test]
fn one_user_has_a_share_and_root_places_of_its_own() {
    let mut server = Server::bind(&socket("share"), 0o600).expect("bind");
    let me = rustix::process::geteuid().as_raw();
    let mut busy = Vec::new();
    let mut fill = |server: &mut Server, user: u32| {
        let before = busy.len();
        while server.place_for(Some(user), Time::default()) == Place::Served {
            let (stream, id) = connect_as(server, user);
            server.answer_later(id);
            busy.push(stream);
        }
        busy.len() - before
    };
    assert_eq!(fill(&mut server, me + 1), room::SHARE);
    assert_eq!(fill(&mut server, me + 2), CLIENTS - room::FOR_ROOT - room::SHARE);
    assert_eq!((fill(&mut server, me + 3), fill(&mut server, me)), (0, room::FOR_ROOT));
    assert!(server.take_gone().is_empty());
}

#[test]
fn who_asks_for_much_at_once_is_served_one_request_in_its_turn() {
    let mut server = Server::bind(&socket("turns"), 0o600).expect("bind");
    let me = rustix::process::geteuid().as_raw();
    let status = request_to_line(&Request::Status).expect("line");
    let ask = |server: &mut Server, user: u32, times: usize| {
        let (mut stream, id) = connect_as(server, user);
        stream.write_all(status.repeat(times).as_bytes()).expect("write");
        server.read(id);
        server.line_up(id);
        (stream, id)
    };
    let greedy = [ask(&mut server, me + 1, 1000), ask(&mut server, me + 1, 1000)];
    let other = ask(&mut server, me + 2, 1);
    let interest = server.interest(greedy[0].1).expect("it is there");
    assert!(!interest.readable, "more is read of it before it was served");
    assert_eq!(server.take_turns(), [greedy[0].1, other.1]);
    for (_, id) in [&greedy[0], &other] {
        assert!(server.request(*id).expect("whole").is_ok());
        server.reply(*id, &Reply::End { newest: 1 });
        server.line_up(*id);
    }
    assert!(server.has_turns());
    assert_eq!(server.take_turns(), [greedy[1].1], "the other one of the same user comes first");
    assert_eq!(server.take_turns(), [greedy[0].1], "who has nothing more to ask has no turn");
    assert!(!server.has_turns());
}

#[test]
fn long_lines_are_for_what_is_handed_over_alone() {
    let mut server = Server::bind(&socket("lines"), 0o600).expect("bind");
    let long = vec!["192.0.2.1:22".to_owned(); 2000];
    let state = State::new(vec![0; whimbrel_ipc::MAX_STATE]).expect("just so");
    let give = Request::Give { to: "desk".into(), receiver: None, state };
    let prepare = Request::Prepare { to: "x".repeat(MAX_REQUEST_LINE), receiver: None };
    for (request, fits) in [(Request::Suspend { connections: long }, false), (prepare, false), (give, true)] {
        let (stream, id) = connect(&mut server);
        let line = request_to_line(&request).expect("line");
        let (kept, given) = UnixStream::pair().expect("pair");
        let with = [given.as_fd()];
        let with = if request.descriptors() == 0 { &with[..0] } else { &with[..] };
        stream.set_nonblocking(true).expect("set");
        let mut sent = 0;
        let mut told = None;
        while told.is_none() && server.interest(id).is_some() {
            if sent < line.len() {
                match send_line(&stream, &line.as_bytes()[sent..], if sent == 0 { with } else { &[] }) {
                    Ok(count) => sent += count,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            server.read(id);
            server.line_up(id);
            server.take_turns();
            told = server.request(id);
        }
        assert_eq!(told.is_some_and(|told| told.is_ok_and(|asked| asked.request == request)), fits);
        drop(kept);
    }
}

#[test]
fn little_is_read_at_once_of_who_stays() {
    let mut server = Server::bind(&socket("flood"), 0o600).expect("bind");
    let (mut stream, id) = connect(&mut server);
    server.stay(id);
    stream.set_nonblocking(true).expect("set");
    let mut sent = 0;
    while let Ok(count) = stream.write(&[b'x'; 4096]) {
        sent += count;
    }
    server.read(id);
    let left = rustix::io::ioctl_fionread(&*server.clients[&id].stream).expect("asked");
    assert!(sent > READS * 16 * 1024 && left > 0, "{left} of {sent}");
}

#[test]
fn what_takes_long_to_close_holds_nothing_up() {
    use std::net::{TcpListener, TcpStream};
    const LINGERS: Duration = Duration::from_secs(60);
    let mut server = Server::bind(&socket("linger"), 0o600).expect("bind");
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    // Its peer does not read, and whoever closes it last waits.
    let lingering = || {
        let mut near = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        let far = listener.accept().expect("accept").0;
        rustix::net::sockopt::set_socket_linger(&near, Some(LINGERS)).expect("set");
        near.set_nonblocking(true).expect("set");
        while near.write(&[0; 1 << 16]).is_ok() {}
        (near, far)
    };
    let begun = std::time::Instant::now();
    let (stream, id) = connect(&mut server);
    let mut far_ends = Vec::new();
    let mut send = |request: &Request, whole: bool| {
        let (near, far) = lingering();
        let line = request_to_line(request).expect("line");
        let length = if whole { line.len() } else { 5 };
        send_line(&stream, &line.as_bytes()[..length], &[near.as_fd()]).expect("sent");
        far_ends.push(far);
    };
    // With a request that takes none, with one that takes one, with the beginning of one, and unread.
    send(&Request::Status, true);
    server.read(id);
    assert!(server.request(id).expect("whole").is_err());
    send(&Request::Uuid, true);
    server.read(id);
    drop(server.request(id).expect("whole").expect("valid"));
    send(&Request::Uuid, false);
    server.read(id);
    send(&Request::Uuid, false);
    drop(stream);
    server.remove(id);
    assert!(begun.elapsed() < LINGERS / 2, "somebody waited for {:?}", begun.elapsed());
    // Their other ends are gone: nobody waits any more.
    drop(far_ends);
}
