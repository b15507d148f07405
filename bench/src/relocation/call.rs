//! The thesis's own case: a video call of ffmpeg goes from one machine to another and back, while the other party
//! stays.
//!
//! ```text
//!   ffmpeg ─(lo)─ party ══ RTP over one connected UDP socket, both ways ══ desk or guest ─(lo)─ ffmpeg, on both
//! ```
//!
//! On both machines a camera (an ffmpeg that sends RTP to its own host) runs all the time. Who has the call's socket
//! passes on what its camera sends, from a frame's beginning on, and numbers it on from where the other machine
//! stopped: RTP's sequence number, time and source go along with the socket as its program's state. Each frame can be
//! decoded by itself, so the party sees one stream. What the party's ffmpeg sends has its own numbers, which show
//! whether all of it came, wherever it came.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use whimbrel_ipc::{Client, Reply, Request, State};
use whimbrel_lab::{Host, Process};

use super::stage::{Far, LONG, NAMES, Stage};
use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Bound, Figure, Report, Samples};
use crate::roam::Options;

/// kbit/s, with sizes of pictures that suit them.
const RATES: [(u32, &str); 2] = [(1500, "320x240"), (400, "176x144")];
const FRAMES: u32 = 30;
/// Of RTP's clock for video (RFC 3551), between two frames.
const FRAME_TICKS: u32 = 90_000 / FRAMES;
/// ms without a packet.
const BOUND: f64 = 100.0;
const TURN: Duration = Duration::from_millis(700);
/// Room for what a camera sends while the other host has the call, in bytes.
const WAITS: usize = 16 << 20;
/// How often a thread that waits for packets looks whether it is to end.
const LOOK: Duration = Duration::from_millis(5);
const RECEIVER: &str = "call";

/// Measures and reports.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    Ok(measure(options)?.finish().map(drop)?)
}

/// What was measured.
pub(super) fn measure(options: &Options) -> Result<Report> {
    warn_if_busy();
    let mut report = Report::new("move-call");
    let moves = options.runs(12, 4);
    for far in Far::ALL {
        for (rate, size) in RATES {
            let id = format!("{}_{rate}", far.name());
            if !id.contains(&options.only) {
                continue;
            }
            let came = call(options, far, rate, size, moves).map_err(|error| format!("{id}: {error}"))?;
            eprintln!("{id}: {} and {} packets, {moves} moves", came.packets[0], came.packets[1]);
            for (at, gaps) in ["party", "moved"].into_iter().zip(&came.gaps) {
                report.add(Figure::new(&format!("{id}_gap_{at}"), "ms", gaps));
                let most = Figure::from_value(&format!("{id}_gap_{at}_most"), "ms", gaps.percentile(100.0), gaps);
                report.add(most.bound(Bound::AtMost(BOUND)));
            }
            report.add(Figure::new(&format!("{id}_came"), "ms", &came.came));
            let most = Figure::from_value(&format!("{id}_came_most"), "ms", came.came.percentile(100.0), &came.came);
            report.add(most);
            for (at, lost) in ["party", "moved"].into_iter().zip(came.lost) {
                let lost: Samples = std::iter::once(lost as f64).collect();
                report.add(Figure::new(&format!("{id}_lost_{at}"), "packets", &lost).bound(Bound::AtMost(0.0)));
            }
        }
    }
    Ok(report)
}

/// What came of a call, as the party has it, and as the machines have it that had the call.
struct Came {
    /// The longest time without a packet around each move, ms.
    gaps: [Samples; 2],
    /// From the request to move until the other program had the socket, ms: nobody speaks meanwhile.
    came: Samples,
    /// Packets that are missing, in numbers that should follow each other.
    lost: [usize; 2],
    packets: [usize; 2],
}

/// A packet that came: when, and its number.
type Arrival = (Instant, u16);

/// An ffmpeg that sends RTP to its own host, and the socket where that comes.
struct Camera {
    _ffmpeg: Process,
    packets: UdpSocket,
}

impl Camera {
    fn start(host: &Host, rate: u32, size: &str) -> Result<Self> {
        let packets = host.enter(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))??;
        packets.set_read_timeout(Some(LOOK))?;
        // All that it sends until it is its turn: the last of that tells where a frame begins.
        rustix::net::sockopt::set_socket_recv_buffer_size_force(&packets, WAITS)?;
        let source = format!("testsrc2=size={size}:rate={FRAMES}");
        let rate = format!("{rate}k");
        let usual = ["-nostdin", "-hide_banner", "-loglevel", "error", "-re", "-f", "lavfi", "-i", &source];
        // Each frame by itself; and of even size, as a camera of a call has it.
        let coded =
            ["-codec:v", "mpeg4", "-g", "1", "-b:v", &rate, "-maxrate", &rate, "-bufsize", "64k", "-threads", "1"];
        let to = format!("rtp://{}?pkt_size=1200", packets.local_addr()?);
        let ffmpeg = host.command("ffmpeg").args(usual).args(coded).args(["-f", "rtp", &to]).spawn()?;
        Ok(Self { _ffmpeg: ffmpeg, packets })
    }
}

/// RTP's header (RFC 3550 section 5.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    ends_frame: bool,
    number: u16,
    time: u32,
    source: u32,
}

impl Header {
    fn read(packet: &[u8]) -> Option<Self> {
        let header: &[u8; 12] = packet.first_chunk()?;
        (header[0] >> 6 == 2).then(|| Self {
            ends_frame: header[1] & 0x80 != 0,
            number: u16::from_be_bytes([header[2], header[3]]),
            time: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
            source: u32::from_be_bytes([header[8], header[9], header[10], header[11]]),
        })
    }

    fn write(&self, packet: &mut [u8]) {
        packet[2..4].copy_from_slice(&self.number.to_be_bytes());
        packet[4..8].copy_from_slice(&self.time.to_be_bytes());
        packet[8..12].copy_from_slice(&self.source.to_be_bytes());
    }
}

/// What the next packet of the call is to be called: the state that goes along with its socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Numbering {
    number: u16,
    /// Of the frame before.
    time: u32,
}

/// Of the call's stream towards the party, whoever sends it.
const SOURCE: u32 = 0x0077_6263;

impl Numbering {
    fn to_bytes(self) -> Vec<u8> {
        [&self.number.to_be_bytes()[..], &self.time.to_be_bytes()].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 6] = bytes.try_into().ok()?;
        let time = u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]);
        Some(Self { number: u16::from_be_bytes([bytes[0], bytes[1]]), time })
    }
}

/// A machine's part in the call while it has its socket.
struct Talking {
    socket: UdpSocket,
    /// To stop at the end of a frame.
    finish: Arc<AtomicBool>,
    /// To stop listening.
    stop: Arc<AtomicBool>,
    speaks: JoinHandle<Result<Numbering>>,
    hears: JoinHandle<()>,
}

impl Talking {
    fn start(socket: UdpSocket, camera: &Camera, from: Numbering, heard: &Arc<Mutex<Vec<Arrival>>>) -> Result<Self> {
        let (finish, stop) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        socket.set_read_timeout(Some(LOOK))?;
        let (to, packets) = (socket.try_clone()?, camera.packets.try_clone()?);
        let speaks = spawn("speaks", {
            let finish = Arc::clone(&finish);
            move || speak(&packets, &to, from, &finish)
        })?;
        let from = socket.try_clone()?;
        let hears = spawn("hears", {
            let (stop, heard) = (Arc::clone(&stop), Arc::clone(heard));
            move || hear(&from, &heard, &stop)
        })?;
        Ok(Self { socket, finish, stop, speaks, hears })
    }
}

fn spawn<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> Result<JoinHandle<T>> {
    Ok(std::thread::Builder::new().name(name.into()).spawn(work)?)
}

/// Passes on whole frames of a camera, until the end of the one in which it is to finish.
fn speak(packets: &UdpSocket, to: &UdpSocket, mut from: Numbering, finish: &AtomicBool) -> Result<Numbering> {
    let mut packet = [0; 2048];
    // What it has sent before is not of now. Unless that ended with a frame, the one in which this falls is not whole.
    let mut between = false;
    packets.set_nonblocking(true)?;
    while let Ok(length) = packets.recv(&mut packet) {
        between = Header::read(&packet[..length]).is_some_and(|header| header.ends_frame);
    }
    packets.set_nonblocking(false)?;
    let mut ahead = None;
    loop {
        if between && finish.load(Ordering::Relaxed) {
            return Ok(from);
        }
        let Ok(length) = packets.recv(&mut packet) else { continue };
        let Some(mut header) = Header::read(&packet[..length]) else { continue };
        let starts = std::mem::replace(&mut between, header.ends_frame);
        if ahead.is_none() && starts {
            ahead = Some(from.time.wrapping_add(FRAME_TICKS).wrapping_sub(header.time));
        }
        let Some(ahead) = ahead else { continue };
        header = Header { number: from.number, time: header.time.wrapping_add(ahead), source: SOURCE, ..header };
        header.write(&mut packet[..length]);
        from = Numbering { number: from.number.wrapping_add(1), time: header.time };
        to.send(&packet[..length])?;
    }
}

/// Notes what comes.
fn hear(from: &UdpSocket, heard: &Mutex<Vec<Arrival>>, stop: &AtomicBool) {
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let Ok(length) = from.recv(&mut packet) else { continue };
        let now = Instant::now();
        if let Some(header) = Header::read(&packet[..length]) {
            heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((now, header.number));
        }
    }
}

/// The other party: passes on all that its camera sends.
fn pass_on(packets: &UdpSocket, to: &UdpSocket, stop: &AtomicBool) -> Result<()> {
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        if let Ok(length) = packets.recv(&mut packet) {
            to.send(&packet[..length])?;
        }
    }
    Ok(())
}

fn receive(run_dir: &std::path::Path) -> Result<Client> {
    let mut client = Client::connect(run_dir)?;
    client.start(&Request::Receive { name: RECEIVER.into() })?;
    match client.next_reply(Some(LONG))?.0 {
        Reply::Receiving { .. } => Ok(client),
        other => Err(format!("a wish to receive was answered by {other:?}").into()),
    }
}

/// A call that begins at the desk and goes back and forth.
fn call(options: &Options, far: Far, rate: u32, size: &str, moves: usize) -> Result<Came> {
    let stage = Stage::build(options, far, None)?;
    let hosts = [stage.daemons[0].host(), stage.daemons[1].host()];
    let cameras = [Camera::start(hosts[0], rate, size)?, Camera::start(hosts[1], rate, size)?];
    let (party, its_camera) = (stage.far.clone(), Camera::start(&stage.far, rate, size)?);
    let at_party = party.enter(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, party.next_port())))??;
    let desk = hosts[0].enter(|| UdpSocket::bind((stage.addresses[0], hosts[0].next_port())))??;
    at_party.connect(desk.local_addr()?)?;
    // Which of its addresses it has is known once it is connected.
    desk.connect(at_party.local_addr()?)?;
    at_party.set_read_timeout(Some(LOOK))?;

    let [by_party, by_moved] = [(); 2].map(|()| Arc::new(Mutex::new(Vec::<Arrival>::new())));
    let stop = Arc::new(AtomicBool::new(false));
    let (to, from) = (at_party.try_clone()?, at_party);
    let talks = spawn("party-speaks", {
        let stop = Arc::clone(&stop);
        move || pass_on(&its_camera.packets, &to, &stop)
    })?;
    let hears = spawn("party-hears", {
        let (stop, heard) = (Arc::clone(&stop), Arc::clone(&by_party));
        move || hear(&from, &heard, &stop)
    })?;

    let mut receivers = [receive(&stage.daemons[0].run_dir())?, receive(&stage.daemons[1].run_dir())?];
    let mut talking = Talking::start(desk, &cameras[0], Numbering::default(), &by_moved)?;
    let count = |of: &Arc<Mutex<Vec<Arrival>>>| of.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).len();
    whimbrel_lab::wait_until(LONG, "both sides hear each other", || count(&by_party) > 100 && count(&by_moved) > 100)?;
    stage.wait_introduced(1)?;
    let (mut moments, mut came) = (Vec::new(), Samples::default());
    for number in 0..moves {
        let (donor, acceptor) = (number % 2, 1 - number % 2);
        // Time of a call between two moves.
        std::thread::sleep(TURN);
        let Talking { socket, finish, stop, speaks, hears } = talking;
        let prepare = Request::Prepare { to: NAMES[acceptor].into(), receiver: Some(RECEIVER.into()) };
        let mut client = Client::connect(&stage.daemons[donor].run_dir())?;
        match client.exchange(&prepare, &[socket.as_fd()], Some(LONG))?.0 {
            Reply::Prepared { .. } => {}
            other => return Err(format!("a call that goes on cannot be prepared: {other:?}").into()),
        }
        finish.store(true, Ordering::Relaxed);
        let numbering = speaks.join().map_err(|_| "a thread that speaks panicked")??;
        let began = Instant::now();
        let give = Request::Give {
            to: NAMES[acceptor].into(),
            receiver: Some(RECEIVER.into()),
            state: State::new(numbering.to_bytes())?,
        };
        let mut client = Client::connect(&stage.daemons[donor].run_dir())?;
        talking = std::thread::scope(|scope| -> Result<Talking> {
            let given = scope.spawn(|| client.exchange(&give, &[socket.as_fd()], Some(LONG)));
            let (reply, descriptors) = receivers[acceptor].next_reply(Some(LONG))?;
            let Reply::Received(received) = reply else {
                return Err(format!("instead of a socket came {reply:?}").into());
            };
            came.push(began.elapsed().as_secs_f64() * 1e3);
            let numbering = Numbering::from_bytes(received.state.as_bytes()).ok_or("the call's state is not whole")?;
            let socket = descriptors.into_iter().next().ok_or("no socket came")?.into();
            let talking = Talking::start(socket, &cameras[acceptor], numbering, &by_moved)?;
            match given.join().map_err(|_| "a thread that gives panicked")??.0 {
                Reply::Moved(_) => Ok(talking),
                other => Err(format!("the call stayed: {other:?}").into()),
            }
        })?;
        stop.store(true, Ordering::Relaxed);
        hears.join().map_err(|_| "a thread that hears panicked")?;
        moments.push((began, Instant::now()));
    }
    std::thread::sleep(TURN);
    // First who sends, then, when nothing is on the way any more, who hears.
    talking.finish.store(true, Ordering::Relaxed);
    let numbering = talking.speaks.join().map_err(|_| "a thread that speaks panicked")??;
    drop(cameras);
    std::thread::sleep(TURN / 4);
    stop.store(true, Ordering::Relaxed);
    talks.join().map_err(|_| "a thread that speaks panicked")??;
    hears.join().map_err(|_| "a thread that hears panicked")?;
    talking.stop.store(true, Ordering::Relaxed);
    talking.hears.join().map_err(|_| "a thread that hears panicked")?;
    let heard = [by_party, by_moved].map(|heard| heard.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone());
    let sent = u32::from(numbering.number);
    // Less than a round of its sequence numbers, so the last of what the call sent is known.
    let mut lost = [0, 1].map(|which| missing(&heard[which]));
    if sent > 0 {
        lost[0] = lost[0].max((sent as usize).saturating_sub(different(&heard[0])));
    }
    let gaps = [0, 1].map(|which| moments.iter().map(|moment| longest_gap(&heard[which], *moment)).collect());
    Ok(Came { gaps, came, lost, packets: [heard[0].len(), heard[1].len()] })
}

fn different(heard: &[Arrival]) -> usize {
    heard.iter().map(|(_, number)| number).collect::<std::collections::HashSet<_>>().len()
}

/// How many numbers are missing between the first and the last. They may come in another order, and go round.
fn missing(heard: &[Arrival]) -> usize {
    let Some((_, first)) = heard.first() else { return 0 };
    let mut at = 0i64;
    let mut places: Vec<i64> = heard
        .iter()
        .map(|(_, number)| {
            let near = first.wrapping_add(at as u16);
            at += i64::from(number.wrapping_sub(near) as i16);
            at
        })
        .collect();
    places.sort_unstable();
    places.dedup();
    places.windows(2).map(|pair| (pair[1] - pair[0] - 1) as usize).sum()
}

/// The longest time without a packet that overlaps a move, ms.
fn longest_gap(heard: &[Arrival], (began, ended): (Instant, Instant)) -> f64 {
    // The frame after it may take its time.
    let until = ended + Duration::from_millis(200);
    let mut times: Vec<Instant> = heard.iter().map(|(time, _)| *time).collect();
    times.sort_unstable();
    let gaps = times.windows(2).filter(|pair| pair[1] > began && pair[0] < until).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default().as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(numbers: &[u16]) -> Vec<Arrival> {
        numbers.iter().map(|number| (Instant::now(), *number)).collect()
    }

    #[test]
    fn numbers_are_missed_in_any_order_and_round() {
        assert_eq!(missing(&arrivals(&[65534, 65535, 0, 1, 2])), 0);
        assert_eq!(missing(&arrivals(&[65534, 0, 65535, 3])), 2);
        assert_eq!(missing(&arrivals(&[5, 5, 6])), 0);
        assert_eq!(missing(&[]), 0);
    }

    #[test]
    fn headers_are_renumbered_in_place() {
        let mut packet = [0x80, 0xe0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 9];
        let header = Header::read(&packet).unwrap();
        assert_eq!(header, Header { ends_frame: true, number: 1, time: 2, source: 3 });
        let other = Header { number: 0x102, time: 0x0304_0506, source: 7, ..header };
        other.write(&mut packet);
        assert_eq!(packet, [0x80, 0xe0, 1, 2, 3, 4, 5, 6, 0, 0, 0, 7, 9]);
        assert_eq!(Header::read(&packet[..11]), None);
    }

    #[test]
    fn numbering_goes_along() {
        let numbering = Numbering { number: 513, time: 0xffff_fff0 };
        assert_eq!(Numbering::from_bytes(&numbering.to_bytes()), Some(numbering));
        assert_eq!(Numbering::from_bytes(&[0; 5]), None);
    }
}
