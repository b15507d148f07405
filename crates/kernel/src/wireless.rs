//! What Wi-Fi tells of itself (nl80211): who has sent this host away, whose beacons are lost, which access point it is
//! at, and how strongly and how fast.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_sys::{Socket, SocketAddr};

use crate::error::Error;
use crate::generic_netlink::{GenericNetlink, split};
use crate::netlink::{Messages, attribute, number, push_attribute};

/// include/uapi/linux/nl80211.h.
const CMD_GET_INTERFACE: u8 = 5;
const CMD_GET_STATION: u8 = 17;
const CMD_DEAUTHENTICATE: u8 = 39;
const CMD_DISASSOCIATE: u8 = 40;
const CMD_CONNECT: u8 = 46;
const CMD_ROAM: u8 = 47;
const CMD_DISCONNECT: u8 = 48;
const CMD_NOTIFY_CQM: u8 = 64;
const ATTR_IFINDEX: u16 = 3;
const ATTR_IFTYPE: u16 = 5;
const ATTR_MAC: u16 = 6;
const ATTR_STA_INFO: u16 = 21;
const ATTR_STATUS_CODE: u16 = 72;
const ATTR_CQM: u16 = 94;
const CQM_RSSI_THRESHOLD_EVENT: u16 = 3;
const CQM_PKT_LOSS_EVENT: u16 = 4;
const CQM_BEACON_LOSS_EVENT: u16 = 8;
/// What drivers said of lost beacons before they had an attribute of its own for it.
const CQM_RSSI_BEACON_LOSS: u32 = 2;
const STA_INFO_SIGNAL: u16 = 7;
const STA_INFO_TX_BITRATE: u16 = 8;
const STA_INFO_SIGNAL_AVG: u16 = 13;
const RATE_INFO_BITRATE: u16 = 1;
const RATE_INFO_BITRATE32: u16 = 5;
/// Rates are told in units of 100 kbit/s.
const RATES_IN_MBIT: u32 = 10;
const IFTYPE_STATION: u32 = 2;
const IFTYPE_P2P_CLIENT: u32 = 8;

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WirelessEvent {
    /// The index of the interface.
    pub interface: u32,
    /// What.
    pub what: Happened,
}

/// Something that happened to an interface of Wi-Fi.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// It is at an access point, perhaps another than before.
    Connected,
    /// It is at none: it was sent away, or has left.
    Disconnected,
    /// Beacons, or several frames in a row, are lost.
    Losing,
    /// The signal has crossed a bound that somebody has set.
    Signal,
}

/// The access point that an interface is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPoint {
    /// Its address.
    pub address: [u8; 6],
    /// How strongly it is received, in dBm: on average, where the driver says that.
    pub signal: Option<i16>,
    /// At which rate frames are sent to it, in Mbit/s.
    pub rate: Option<u32>,
}

/// What has happened since the last look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drained {
    /// In its order.
    pub events: Vec<WirelessEvent>,
    /// Some were lost (ENOBUFS): anything may have happened.
    pub lost: bool,
}

/// Is told what happens to interfaces of Wi-Fi, and asks about them. In the namespace that the opening thread was in.
#[derive(Debug)]
pub struct WirelessMonitor {
    events: Socket,
    requests: GenericNetlink,
    buffer: Vec<u8>,
}

impl WirelessMonitor {
    /// `None` where the kernel knows no Wi-Fi.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn open() -> Result<Option<Self>, Error> {
        let Some(requests) = GenericNetlink::open("nl80211")? else { return Ok(None) };
        let Some(group) = requests.group("mlme") else { return Ok(None) };
        let open = || {
            let mut socket = Socket::new(netlink_sys::protocols::NETLINK_GENERIC)?;
            socket.bind(&SocketAddr::new(0, 0))?;
            socket.add_membership(group)?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let events = open().map_err(|e: io::Error| Error::call("socket", "nl80211 mlme", e))?;
        Ok(Some(Self { events, requests, buffer: vec![0; 1 << 16] }))
    }

    /// Reads all events that wait, without blocking.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn drain(&mut self) -> Result<Drained, Error> {
        let mut drained = Drained::default();
        loop {
            match self.events.recv(&mut &mut self.buffer[..], libc::MSG_TRUNC) {
                Ok(length) if length > self.buffer.len() => drained.lost = true,
                Ok(length) => drained.events.extend(Messages(&self.buffer[..length]).filter_map(|m| event(m.payload))),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return Ok(drained),
                    Some(libc::ENOBUFS) => drained.lost = true,
                    Some(libc::EINTR) => {}
                    _ => return Err(Error::call("recv", "nl80211 mlme", error)),
                },
            }
        }
    }

    /// The indices of interfaces by which this host is a station of somebody's network, or may be.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn stations(&mut self) -> Result<Vec<u32>, Error> {
        let mut all = Vec::new();
        let answer = self.requests.request(CMD_GET_INTERFACE, true, &[], |_, attributes| {
            let kind = attribute(attributes, ATTR_IFTYPE).and_then(number);
            let is_station = kind.is_some_and(|kind| [IFTYPE_STATION, IFTYPE_P2P_CLIENT].contains(&kind));
            all.extend(attribute(attributes, ATTR_IFINDEX).and_then(number).filter(|_| is_station));
        });
        answer.map(|()| all).map_err(|refusal| refusal.of("get-interface", "nl80211"))
    }

    /// The access point that such an interface is at; `None` where it is at none, or has gone.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn access_point(&mut self, interface: u32) -> Result<Option<AccessPoint>, Error> {
        let mut body = Vec::new();
        push_attribute(&mut body, ATTR_IFINDEX, &interface.to_ne_bytes());
        let mut found = None;
        let answer = self.requests.request(CMD_GET_STATION, true, &body, |_, attributes| {
            found = found.or_else(|| access_point(attributes));
        });
        match answer {
            Ok(()) => Ok(found),
            Err(refusal) if [libc::ENODEV, libc::ENETDOWN, libc::EOPNOTSUPP].contains(&refusal.errno()) => Ok(None),
            Err(refusal) => Err(refusal.of("get-station", format!("interface {interface}"))),
        }
    }
}

impl AsFd for WirelessMonitor {
    /// Readable when there is something to [`drain`](Self::drain).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

/// What a message says that the family has sent by itself.
fn event(payload: &[u8]) -> Option<WirelessEvent> {
    let (command, attributes) = split(payload)?;
    let interface = attribute(attributes, ATTR_IFINDEX).and_then(number)?;
    let what = match command {
        CMD_CONNECT => {
            let status = attribute(attributes, ATTR_STATUS_CODE).and_then(|value| value.first_chunk());
            // One that was refused changes nothing.
            status.is_none_or(|status| *status == [0; 2]).then_some(Happened::Connected)?
        }
        CMD_ROAM => Happened::Connected,
        CMD_DISCONNECT | CMD_DEAUTHENTICATE | CMD_DISASSOCIATE => Happened::Disconnected,
        CMD_NOTIFY_CQM => quality(attribute(attributes, ATTR_CQM)?)?,
        _ => return None,
    };
    Some(WirelessEvent { interface, what })
}

fn quality(cqm: &[u8]) -> Option<Happened> {
    let crossed = attribute(cqm, CQM_RSSI_THRESHOLD_EVENT).and_then(number);
    let is_losing = crossed == Some(CQM_RSSI_BEACON_LOSS)
        || attribute(cqm, CQM_BEACON_LOSS_EVENT).is_some()
        || attribute(cqm, CQM_PKT_LOSS_EVENT).is_some();
    if is_losing { Some(Happened::Losing) } else { crossed.map(|_| Happened::Signal) }
}

fn access_point(attributes: &[u8]) -> Option<AccessPoint> {
    let address = *attribute(attributes, ATTR_MAC)?.first_chunk()?;
    let info = attribute(attributes, ATTR_STA_INFO)?;
    let dbm = |kind| attribute(info, kind).and_then(|value| value.first()).map(|byte| i16::from(byte.cast_signed()));
    let sent = attribute(info, STA_INFO_TX_BITRATE).unwrap_or_default();
    let short = |value: &[u8]| value.first_chunk().map(|bytes| u32::from(u16::from_ne_bytes(*bytes)));
    let rate = attribute(sent, RATE_INFO_BITRATE32).and_then(number);
    let rate = rate.or_else(|| attribute(sent, RATE_INFO_BITRATE).and_then(short)).filter(|rate| *rate > 0);
    let signal = dbm(STA_INFO_SIGNAL_AVG).or_else(|| dbm(STA_INFO_SIGNAL)).filter(|signal| *signal < 0);
    Some(AccessPoint { address, signal, rate: rate.map(|rate| rate.div_ceil(RATES_IN_MBIT)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::NESTED;

    /// A message as the kernel has it: command, version, and attributes.
    fn message(command: u8, attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut all = vec![command, 1, 0, 0];
        attributes.iter().for_each(|(kind, value)| push_attribute(&mut all, *kind, value));
        all
    }

    fn nested(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        message(0, attributes)[4..].to_vec()
    }

    const WLAN: &[u8] = &3u32.to_ne_bytes();

    fn said(command: u8, more: &[(u16, &[u8])]) -> Option<Happened> {
        let wiphy: (u16, &[u8]) = (1, &[0; 4]);
        let event = event(&message(command, &[&[wiphy, (ATTR_IFINDEX, WLAN)], more].concat()))?;
        assert_eq!(event.interface, 3);
        Some(event.what)
    }

    #[test]
    fn events_are_read() {
        let (fine, refused) = (0u16.to_ne_bytes(), 17u16.to_ne_bytes());
        assert_eq!(said(CMD_CONNECT, &[(ATTR_STATUS_CODE, &fine)]), Some(Happened::Connected));
        assert_eq!(said(CMD_CONNECT, &[(ATTR_STATUS_CODE, &refused)]), None);
        assert_eq!(said(CMD_ROAM, &[(ATTR_MAC, &[2; 6])]), Some(Happened::Connected));
        for gone in [CMD_DISCONNECT, CMD_DEAUTHENTICATE, CMD_DISASSOCIATE] {
            assert_eq!(said(gone, &[]), Some(Happened::Disconnected));
        }
        // A scan that has ended, and whatever is new.
        assert_eq!(said(34, &[]), None);
        assert_eq!(event(&message(CMD_DISCONNECT, &[])), None, "of no interface");
        assert_eq!(event(&[CMD_DISCONNECT]), None);
    }

    #[test]
    fn what_is_told_of_quality_is_read() {
        let cqm = |attributes: &[(u16, &[u8])]| said(CMD_NOTIFY_CQM, &[(ATTR_CQM | NESTED, &nested(attributes))]);
        let word = |number: u32| number.to_ne_bytes();
        assert_eq!(cqm(&[(CQM_RSSI_THRESHOLD_EVENT, &word(0)), (9, &word(200))]), Some(Happened::Signal));
        assert_eq!(cqm(&[(CQM_RSSI_THRESHOLD_EVENT, &word(1))]), Some(Happened::Signal));
        assert_eq!(cqm(&[(CQM_RSSI_THRESHOLD_EVENT, &word(2))]), Some(Happened::Losing));
        assert_eq!(cqm(&[(CQM_BEACON_LOSS_EVENT, &[])]), Some(Happened::Losing));
        assert_eq!(cqm(&[(CQM_PKT_LOSS_EVENT, &word(50))]), Some(Happened::Losing));
        assert_eq!(cqm(&[(5, &word(3))]), None);
        assert_eq!(said(CMD_NOTIFY_CQM, &[]), None);
    }

    #[test]
    fn figures_are_read() {
        let of = |info: &[(u16, &[u8])]| {
            let info = nested(info);
            let all = message(19, &[(ATTR_IFINDEX, WLAN), (ATTR_MAC, &[2; 6]), (ATTR_STA_INFO | NESTED, &info)]);
            access_point(split(&all).expect("a header").1).map(|at| (at.signal, at.rate))
        };
        let rate = |attributes: &[(u16, &[u8])]| nested(attributes);
        let wide = rate(&[(RATE_INFO_BITRATE32, &8667u32.to_ne_bytes()), (RATE_INFO_BITRATE, &8667u16.to_ne_bytes())]);
        let old = rate(&[(RATE_INFO_BITRATE, &540u16.to_ne_bytes())]);
        let sent = STA_INFO_TX_BITRATE | NESTED;
        let weak = (-71i8).to_ne_bytes();
        assert_eq!(of(&[(STA_INFO_SIGNAL, &(-50i8).to_ne_bytes()), (sent, &wide)]), Some((Some(-50), Some(867))));
        assert_eq!(
            of(&[(STA_INFO_SIGNAL, &[0]), (STA_INFO_SIGNAL_AVG, &weak), (sent, &old)]),
            Some((Some(-71), Some(54)))
        );
        assert_eq!(of(&[]), Some((None, None)));
        assert_eq!(access_point(&[]), None);
    }

    /// What Linux 6.1 has sent of simulated radios, by names.
    fn captured(name: &str) -> Vec<u8> {
        let all = include_str!("../tests/vectors/nl80211");
        let line = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("a message");
        let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal");
        (0..line.len()).step_by(2).map(byte).collect()
    }

    #[test]
    fn what_a_kernel_has_sent_is_read() {
        let told = |name: &str| event(&captured(name)).map(|event| (event.interface, event.what));
        assert_eq!(told("beacons-lost"), Some((4, Happened::Losing)));
        assert_eq!(told("deauthenticated"), Some((4, Happened::Disconnected)));
        assert_eq!(told("disconnected"), Some((4, Happened::Disconnected)));
        for name in ["new-station", "authentication-timed-out"] {
            assert_eq!(told(name), None, "{name}");
        }
        let at = access_point(split(&captured("station")).expect("a header").1);
        let weak = AccessPoint { address: [2, 0, 0, 0, 1, 0], signal: Some(-77), rate: Some(18) };
        assert_eq!(at, Some(weak));
        let kind = |name| attribute(split(&captured(name))?.1, ATTR_IFTYPE).and_then(number);
        assert_eq!([kind("interface"), kind("p2p-device")], [Some(IFTYPE_STATION), Some(10)]);
    }

    #[test]
    fn a_kernel_without_wifi_is_no_failure() {
        if let Some(mut monitor) = WirelessMonitor::open().unwrap() {
            assert!(!monitor.drain().unwrap().lost);
            assert_eq!(monitor.access_point(crate::route::LOOPBACK).unwrap(), None);
        }
    }
}
