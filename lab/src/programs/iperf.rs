//! iperf3.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use crate::{Error, Host, Process, Result, expect, wait_until};

/// An iperf3 server.
#[derive(Debug)]
pub struct IperfServer {
    process: Process,
    address: IpAddr,
    port: u16,
}

/// Result of one run.
#[derive(Clone, Debug)]
pub struct Iperf {
    /// Bits a second at the receiver.
    pub bits_per_second: f64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// CPU of the client's host and of the server's host in percent of one core, as iperf3 reports.
    pub cpu_percent: [f64; 2],
    /// All that iperf3 printed.
    pub json: Value,
}

impl IperfServer {
    /// Starts it on this address.
    pub fn start(host: &Host, address: IpAddr) -> Result<Self> {
        let port = host.next_port();
        let args = ["--server".into(), "--forceflush".into(), format!("--bind={address}"), format!("--port={port}")];
        let mut process = host.command("iperf3").args(&args).label("iperf3-server").spawn()?;
        wait_until(Duration::from_secs(10), "iperf3 listens", || {
            process.stdout().contains("listening") || !process.is_running()
        })?;
        expect!(process.is_running(), "iperf3 ended: {}", process.stderr());
        Ok(Self { process, address, port })
    }

    /// Port that it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts a client; `args` are further options, such as `-t 5 -C cubic -R`.
    pub fn start_client(&self, client: &Host, args: &[&str]) -> Result<Process> {
        let to = [format!("--client={}", self.address), format!("--port={}", self.port), "--json".into()];
        client.command("iperf3").args(&to).args(args).label("iperf3").spawn()
    }

    /// Waits for a client's end and reads its result.
    pub fn result(mut client: Process, timeout: Duration) -> Result<Iperf> {
        let status = client.wait(timeout)?;
        wait_until(Duration::from_secs(5), "iperf3's output is complete", || {
            client.stdout().trim_end().ends_with('}')
        })?;
        let text = client.stdout();
        let json: Value = serde_json::from_str(&text).map_err(|_| Error::Output {
            program: "iperf3".into(),
            expected: "JSON",
            got: text.chars().take(300).collect(),
        })?;
        expect!(status.success() && json["error"].is_null(), "iperf3 failed: {}", json["error"]);
        let end = &json["end"];
        let number = |v: &Value| v.as_f64().unwrap_or(0.0);
        Ok(Iperf {
            bits_per_second: number(&end["sum_received"]["bits_per_second"]),
            retransmits: end["sum_sent"]["retransmits"].as_u64().unwrap_or(0),
            cpu_percent: [
                number(&end["cpu_utilization_percent"]["host_total"]),
                number(&end["cpu_utilization_percent"]["remote_total"]),
            ],
            json,
        })
    }

    /// Runs a client to its end.
    pub fn run(&self, client: &Host, args: &[&str]) -> Result<Iperf> {
        Self::result(self.start_client(client, args)?, Duration::from_secs(300))
    }
}
