//! What the emulator itself is capable of, measured: throughput, processor time and the error of its delays.

use std::time::Duration;

use crate::{
    Campus, Direction, FlowPair, IperfServer, Join, Lab, MonoTime, PairOptions, Result, Shape, SiteSpec, wait_until,
};

/// Result of [`run`].
#[derive(Clone, Debug)]
pub struct LinkBench {
    /// TCP through one link without rate limit: bits a second at the receiver.
    pub bits_per_second: f64,
    /// Frames a second that the forwarding thread carried meanwhile, both directions.
    pub frames_per_second: f64,
    /// Mean size of the frames from the sender, bytes.
    pub frame_bytes: f64,
    /// Share of one processor that the forwarding thread used meanwhile, the receiving host's protocol work included.
    pub processor: f64,
    /// Lateness of frames at 50 Mbit/s and 20 ms: the mean and the largest.
    pub lateness: [Duration; 2],
}

/// Measures a link between two hosts for `duration` each: without limit, then at 50 Mbit/s and 20 ms.
pub fn run(lab: &mut Lab, duration: Duration) -> Result<LinkBench> {
    let mut campus = Campus::new(lab)?;
    let mut spec = SiteSpec::named("a").uplink(Shape { queue_packets: 10_000, ..Shape::default() });
    spec.access = crate::Wire::Veth;
    let a = campus.add(lab, spec)?;
    let s = campus.add(lab, SiteSpec::named("s").fast())?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let to = server.join(&s.network, &Join::by("eth0"))?.ipv4()?;
    client.join(&a.network, &Join::by("eth0"))?;
    let link = a.link()?;

    let iperf = IperfServer::start(&server, to)?;
    let seconds = duration.as_secs().max(1).to_string();
    let counted = |link: &crate::Link| Direction::BOTH.map(|d| link.counters(d));
    let (before, cpu) = (counted(link), thread_cpu("links")?);
    let start = MonoTime::now();
    let result = iperf.run(&client, &["-t", &seconds, "-C", "cubic"])?;
    let wall = (MonoTime::now() - start).as_secs_f64();
    let (after, cpu) = (counted(link), thread_cpu("links")? - cpu);
    let frames: u64 = [0, 1].map(|i| after[i].delivered - before[i].delivered).iter().sum();
    let up = after[0].delivered - before[0].delivered;
    let up_bytes = after[0].delivered_bytes - before[0].delivered_bytes;

    link.set_both(&Shape::delay_rate(20, 50));
    let mut pair = FlowPair::tcp(&client, &server, to, &PairOptions::download(None))?;
    // What was sent before the sender found the rate is not of interest.
    pair.wait_progress_of(&[crate::Side::Client], 1 << 20, Duration::from_secs(20))?;
    let before = link.counters(Direction::Down);
    let end = MonoTime::now() + duration;
    wait_until(duration * 2, "the measurement is over", || MonoTime::now() >= end)?;
    let after = link.counters(Direction::Down);
    let mean = (after.late_ns - before.late_ns) / (after.delivered - before.delivered).max(1);
    Ok(LinkBench {
        bits_per_second: result.bits_per_second,
        frames_per_second: frames as f64 / wall,
        frame_bytes: up_bytes as f64 / up.max(1) as f64,
        processor: cpu / wall,
        lateness: [Duration::from_nanos(mean), Duration::from_nanos(after.latest_ns)],
    })
}

/// Processor time in seconds of this process's thread with this name.
fn thread_cpu(name: &str) -> Result<f64> {
    let on = |e| crate::Error::call("read", "/proc/self/task", e);
    for entry in std::fs::read_dir("/proc/self/task").map_err(on)?.flatten() {
        let read = |file: &str| std::fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        if read("comm").trim_end() == name {
            // schedstat's first number: time on the processor, ns.
            let text = read("schedstat");
            let ns: u64 = text.split_whitespace().next().and_then(|w| w.parse().ok()).unwrap_or(0);
            return Ok(ns as f64 / 1e9);
        }
    }
    Ok(0.0)
}
