//! Wi-Fi over simulated radios (mac80211_hwsim): access points of hostapd's, and a station of wpa_supplicant's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Error, Host, Process, Result, expect, wait_for, wait_until};

const WITHIN: Duration = Duration::from_secs(30);
/// Where the kernel shows radios of the first network namespace.
const RADIOS: &str = "/sys/class/ieee80211";
const SSID: &str = "roost";
const PASSPHRASE: &str = "over storms";
/// Simulated radios of different groups do not hear each other.
const HEARD: u8 = 1;
const UNHEARD: u8 = 2;
/// What a transmitter's power adds to what receivers are told, in dBm.
const POWER: i16 = 20;

/// A simulated radio, in the namespace of a host. When that goes the kernel puts it back.
#[derive(Debug)]
pub struct Radio {
    host: Host,
    phy: String,
    interface: String,
}

impl Radio {
    /// Gives each of these hosts a radio, which has to be the machine's own and unused.
    pub fn hand_out<const N: usize>(hosts: [&Host; N]) -> Result<[Self; N]> {
        if !Path::new("/sys/module/mac80211_hwsim").exists() {
            let lacks = "there are no simulated radios (mac80211_hwsim), as in `xtask test-kernels 6.1-wifi`";
            return Err(Error::Skipped(lacks.into()));
        }
        // Those of a lab before are back when the kernel has removed its namespaces.
        let radios = wait_for(WITHIN, &format!("{N} radios are there"), || {
            let radios = there()?;
            Ok((radios.len() >= N).then_some(radios))
        })?;
        let mut radios = radios.into_iter();
        let handed = hosts.map(|host| {
            let (phy, interface) = radios.next().ok_or_else(|| Error::Usage("a radio is gone".into()))?;
            let radio = Self { host: host.clone(), phy, interface };
            radio.hand_over()?;
            Ok(radio)
        });
        let mut taken = Vec::with_capacity(N);
        for radio in handed {
            taken.push(radio?);
        }
        taken.try_into().map_err(|_| Error::Usage("a radio is gone".into()))
    }

    fn hand_over(&self) -> Result<()> {
        let name = self.host.netns_name();
        self.write("group", &HEARD.to_string())?;
        // From outside: `iw` puts it where the name of a namespace says.
        let mut command = std::process::Command::new("iw");
        let output = command.args(["phy", &self.phy, "set", "netns", "name", name]).output();
        let output = output.map_err(|error| Error::call("run", "iw", error))?;
        let said = String::from_utf8_lossy(&output.stderr);
        expect!(output.status.success(), "iw does not move {} to {name}: {said}", self.phy);
        // An access point of a lab before has left it as one.
        self.host.command("iw").args(["dev", &self.interface, "set", "type", "managed"]).run().map(drop)
    }

    /// The name of its interface.
    #[must_use]
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Has others receive it so strongly, in dBm.
    pub fn received_at(&self, dbm: i16) -> Result<()> {
        let own = i64::from(dbm - POWER);
        // Some kernels read this file without a sign.
        self.write("rx_rssi", &own.to_string()).or_else(|_| self.write("rx_rssi", &own.cast_unsigned().to_string()))
    }

    /// Whether others hear it, and it others. Nobody is told.
    pub fn set_heard(&self, heard: bool) -> Result<()> {
        self.write("group", &(if heard { HEARD } else { UNHEARD }).to_string())
    }

    fn write(&self, file: &str, value: &str) -> Result<()> {
        let path = format!("/sys/kernel/debug/ieee80211/{}/hwsim/{file}", self.phy);
        fs::write(&path, value).map_err(|error| Error::call("write", path, error))
    }
}

/// The radios of the first namespace with their interfaces, in the order of their names.
fn there() -> Result<Vec<(String, String)>> {
    let names = |path: &Path| -> Result<Vec<String>> {
        let entries = fs::read_dir(path).map_err(|error| Error::call("readdir", path.display().to_string(), error))?;
        let mut names: Vec<_> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        Ok(names)
    };
    let mut radios = Vec::new();
    for phy in names(Path::new(RADIOS))? {
        // Without a directory it has no interface any more, or not yet.
        let interfaces = names(&Path::new(RADIOS).join(&phy).join("device/net")).unwrap_or_default();
        radios.extend(interfaces.into_iter().next().map(|interface| (phy, interface)));
    }
    Ok(radios)
}

/// An access point of the one network that there is (WPA2).
#[derive(Debug)]
pub struct AccessPoint {
    radio: Radio,
    address: String,
    _hostapd: Process,
}

impl AccessPoint {
    /// Starts it, as a port of a bridge of its host's.
    pub fn start(radio: Radio, bridge: &str, channel: u8) -> Result<Self> {
        let Radio { host, interface, .. } = &radio;
        let config = host.dir().join(format!("{interface}.hostapd"));
        let text = format!(
            "interface={interface}\nbridge={bridge}\ndriver=nl80211\nssid={SSID}\nhw_mode=g\nchannel={channel}\n\
             wmm_enabled=1\nieee80211n=1\nwpa=2\nwpa_key_mgmt=WPA-PSK\nrsn_pairwise=CCMP\nwpa_passphrase={PASSPHRASE}\n"
        );
        fs::write(&config, text).map_err(|error| Error::call("write", config.display().to_string(), error))?;
        let mut hostapd = host.command("hostapd").arg(&config).label(format!("hostapd-{interface}")).spawn()?;
        let ready = format!("{interface} is an access point");
        wait_until(WITHIN, &ready, || !hostapd.is_running() || hostapd.stdout().contains("AP-ENABLED"))?;
        expect!(hostapd.is_running(), "hostapd ended: {}", hostapd.stdout());
        let address = address(host, interface)?;
        Ok(Self { radio, address, _hostapd: hostapd })
    }

    /// Its radio.
    #[must_use]
    pub fn radio(&self) -> &Radio {
        &self.radio
    }

    /// Its address (BSSID).
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }
}

fn address(host: &Host, interface: &str) -> Result<String> {
    let said = host.ip_output(&format!("-o link show dev {interface}"))?;
    let address = said.split_once("link/ether ").and_then(|(_, rest)| rest.split_whitespace().next());
    address.map(str::to_owned).ok_or_else(|| Error::Output {
        program: "ip".into(),
        expected: "an address of Ethernet",
        got: said.chars().take(300).collect(),
    })
}

/// A station of that network.
#[derive(Debug)]
pub struct Station {
    radio: Radio,
    control: PathBuf,
    _supplicant: Process,
}

impl Station {
    /// Starts it; at an access point when this returns.
    pub fn start(radio: Radio) -> Result<Self> {
        let Radio { host, interface, .. } = &radio;
        let (config, control) = (host.dir().join("supplicant.conf"), host.dir().join("supplicant"));
        // Its own mind to roam would come between.
        let text = format!(
            "ctrl_interface={}\np2p_disabled=1\n\
             network={{\n ssid=\"{SSID}\"\n psk=\"{PASSPHRASE}\"\n bgscan=\"\"\n}}\n",
            control.display()
        );
        fs::write(&config, text).map_err(|error| Error::call("write", config.display().to_string(), error))?;
        let command = host.command("wpa_supplicant").args(["-D", "nl80211", "-i", interface, "-c"]).arg(&config);
        let supplicant = command.label("wpa_supplicant").spawn()?;
        let station = Self { radio, control, _supplicant: supplicant };
        wait_for(WITHIN, "the station is at an access point", || Ok(station.at()?.map(drop)))?;
        Ok(station)
    }

    /// Its radio.
    #[must_use]
    pub fn radio(&self) -> &Radio {
        &self.radio
    }

    /// The address of the access point that it is at, if it is at one.
    pub fn at(&self) -> Result<Option<String>> {
        // Where it does not answer yet it is at none.
        let Ok(said) = self.ask(&["status"]) else { return Ok(None) };
        let value = |key: &str| said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        Ok(value("bssid").filter(|_| value("wpa_state") == Some("COMPLETED")).map(str::to_owned))
    }

    /// Goes to that access point. Where it was busy with something else, or did not get there, it is told again.
    pub fn roam(&self, to: &AccessPoint) -> Result<()> {
        wait_for(WITHIN, &format!("the station is at {}", to.address), || {
            match self.at()? {
                Some(at) if at == to.address => return Ok(Some(())),
                // It is on its way, or comes back from an attempt.
                None => return Ok(None),
                Some(_) => {}
            }
            // It goes only where it has heard of. A scan that is under way refuses another.
            let is_heard = self.ask(&["scan_results"])?.contains(&to.address);
            let words = if is_heard { ["roam", &to.address].to_vec() } else { ["scan"].to_vec() };
            self.ask(&words).map(|_| None)
        })
    }

    fn ask(&self, words: &[&str]) -> Result<String> {
        let Radio { host, interface, .. } = &self.radio;
        host.command("wpa_cli").arg("-p").arg(&self.control).args(["-i", interface]).args(words).run()
    }
}
