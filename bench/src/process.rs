//! Whole processes that change hosts: how long they stand still, with what was written down of their memory while they
//! ran and without.
//!
//! ```text
//!  far ──(veth)── router ──┐
//!  desk ─(veth)── router ──┼── core        the process is at desk, and goes to guest
//!  guest (veth)── router ──┘
//! ```

use std::time::Duration;

use whimbrel_ipc::{MovedProcess, Reply};
use whimbrel_lab::{
    Campus, EchoServer, Host, Join, Lab, Lame, Metadata, SiteSpec, Walker, criu_lacks, criu_tracks_memory,
};

use crate::Result;
use crate::machine::warn_if_busy;
use crate::report::{Figure, Report, Samples};
use crate::roam::Options;

/// Memory of the process, in MiB. Images of more than 256 MiB are not sent.
const SIZES: [usize; 3] = [2, 50, 200];
const CONNECTIONS: usize = 3;

/// Measures and reports; or says that there is no CRIU.
///
/// # Errors
/// When something could not be measured.
pub fn run(options: &Options) -> Result<()> {
    if let Some(why) = criu_lacks() {
        println!("process: left out: no CRIU ({why})");
        return Ok(());
    }
    warn_if_busy();
    let tracks = criu_tracks_memory();
    if !tracks {
        println!("process: left out: memory that is written down before; this kernel does not track what is written");
    }
    let mut report = Report::new("process");
    for size in SIZES {
        let id = format!("{size}_mib");
        if !id.contains(&options.only) || options.quick && size > SIZES[1] {
            continue;
        }
        let [mut still, mut gap] = [(); 2].map(|()| [Samples::default(), Samples::default()]);
        for run in 1..=options.runs(5, 1) {
            for (at, before) in [false, true].into_iter().enumerate() {
                if before && !tracks {
                    continue;
                }
                let came = one_move(options, size, before)?;
                let how = if before { "written down before" } else { "at rest alone" };
                eprintln!("{run} {id} {how}: stood still for {:.0} ms, silent for {:.0} ms", came.still, came.gap);
                still[at].push(came.still);
                gap[at].push(came.gap);
            }
        }
        for (what, [without, with]) in [("still", &still), ("gap", &gap)] {
            report.add(Figure::new(&format!("{id}_at_rest_{what}"), "ms", without));
            if tracks {
                report.add(Figure::against(&format!("{id}_before_{what}"), "ms", with, without));
            }
        }
    }
    Ok(report.finish().map(drop)?)
}

/// What came of one move, in ms.
struct Came {
    /// How long the process stood still, as the donor says.
    still: f64,
    /// The longest that one of its connections was silent, as the process sees it, from its beginning until it went on
    /// there.
    gap: f64,
}

fn one_move(options: &Options, size: usize, before: bool) -> Result<Came> {
    let mut lab = Lab::new(options.setup.lab_options())?;
    let mut campus = Campus::new(&mut lab)?;
    let mut host = |name: &str, site: &str| -> Result<(Host, std::net::IpAddr)> {
        let site = campus.add(&mut lab, SiteSpec::named(site).fast())?;
        let host = lab.host(name)?;
        let address = host.join(&site.network, &Join::by("eth0"))?.ipv4()?;
        Ok((host, address))
    };
    let (far, at_far) = host("far", "a")?;
    let (desk, at_desk) = host("desk", "s")?;
    let (guest, _) = host("guest", "t")?;
    let donor =
        if before { desk.whimbrel_for_processes(false)? } else { desk.whimbrel_for_processes_lame(Lame::OnlyAtRest)? };
    let acceptor = guest.whimbrel_for_processes(true)?;
    donor.befriend(&acceptor, at_desk)?;
    let echo = EchoServer::start(&far, at_far)?;
    let metadata = Metadata { memory: size << 20, ..Metadata::default() };
    let walker = Walker::start(&desk, &echo, CONNECTIONS, metadata)?;
    let replies = donor.json(&["move", "--pid", &walker.pid().to_string(), "--to", "guest"])?;
    let moved: Option<MovedProcess> = replies.into_iter().find_map(|reply| match reply {
        Reply::MovedProcess(moved) => Some(*moved),
        _ => None,
    });
    let moved = moved.ok_or("the process did not move")?;
    if !moved.lost.is_empty() || moved.connections != CONNECTIONS {
        return Err(format!("connections were lost: {:?}", moved.lost).into());
    }
    walker.wait_progress(100)?;
    let still = moved.still_ms.map(Duration::from_millis).ok_or("nobody says how long it stood still")?;
    Ok(Came { still: milliseconds(still), gap: milliseconds(walker.report()?.longest_gap) })
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}
