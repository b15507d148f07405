//! A bus, with services that say what they are told to: dbus-daemon, and python-dbusmock's.

use std::fs;
use std::time::Duration;

use crate::{Error, Host, Process, Result, expect, wait_until};

const WITHIN: Duration = Duration::from_secs(30);
/// Debian's own, which has dbusmock.
const PYTHON: &str = "/usr/bin/python3";
/// What begins each program that tells a service something.
const BEGIN: &str = "import dbus\nbus = dbus.SystemBus()\n\
     def mock(name, path): return dbus.Interface(bus.get_object(name, path), 'org.freedesktop.DBus.Mock')\n\
     def u(number): return dbus.UInt32(number)\n\
     def i(number): return dbus.Int32(number)\n\
     NM, MM = 'org.freedesktop.NetworkManager', 'org.freedesktop.ModemManager1'\n";

impl Host {
    /// The address of this host's bus, which is there when somebody has [started](Bus::start) it.
    #[must_use]
    pub fn bus_address(&self) -> String {
        format!("unix:path={}", self.dir().join("bus").display())
    }
}

/// A bus that is everybody's on its host.
#[derive(Debug)]
pub struct Bus {
    host: Host,
    process: Process,
}

impl Bus {
    /// Starts it.
    pub fn start(host: &Host) -> Result<Self> {
        let config = host.dir().join("bus.conf");
        let text = format!(
            "<busconfig><type>system</type><listen>{}</listen><policy context=\"default\"><allow user=\"*\"/>\
             <allow own=\"*\"/><allow send_destination=\"*\" eavesdrop=\"true\"/><allow receive_sender=\"*\"/></policy>\
             </busconfig>",
            host.bus_address()
        );
        fs::write(&config, text).map_err(|error| Error::call("write", config.display().to_string(), error))?;
        // What a killed one has left.
        let socket = host.dir().join("bus");
        if socket.exists() {
            fs::remove_file(&socket).map_err(|error| Error::call("unlink", socket.display().to_string(), error))?;
        }
        let command = host.command("dbus-daemon").args(["--nofork", "--nopidfile", "--config-file"]).arg(&config);
        let mut process = command.label("dbus-daemon").spawn()?;
        wait_until(WITHIN, "the bus is there", || !process.is_running() || socket.exists())?;
        expect!(process.is_running(), "dbus-daemon ended: {}", process.stderr());
        Ok(Self { host: host.clone(), process })
    }

    /// The process, to be stopped and killed.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// Starts the mock of a service that dbusmock knows.
    pub fn template(&self, name: &str, bus_name: &str) -> Result<Process> {
        self.service(&["--template", name], bus_name)
    }

    /// Starts NetworkManager, with devices that are connected, by their interfaces.
    pub fn network_manager(&self, interfaces: &[&str]) -> Result<Process> {
        let service = self.template("networkmanager", "org.freedesktop.NetworkManager")?;
        for interface in interfaces {
            self.add_device(interface)?;
        }
        Ok(service)
    }

    /// Has NetworkManager know a device, which is connected.
    pub fn add_device(&self, interface: &str) -> Result<()> {
        self.say(&format!(
            "at = mock(NM, '/org/freedesktop').AddEthernetDevice('{interface}', '{interface}', i(100))\n\
             values = dict(Ip4Connectivity=u(4), Ip6Connectivity=u(0), Metered=u(4))\n\
             mock(NM, at).AddProperties(NM + '.Device', values)\n\
             mock(NM, at).EmitSignal('org.freedesktop.DBus.Properties', 'PropertiesChanged', 'sa{{sv}}as',\n\
             \x20   [NM + '.Device', dict(Ip4Connectivity=u(4)), dbus.Array([], 's')])\n"
        ))
    }

    /// Has NetworkManager say this of a device, as Python writes it: `State=u(110)`.
    pub fn device(&self, interface: &str, properties: &str) -> Result<()> {
        let at = format!("/org/freedesktop/NetworkManager/Devices/{interface}");
        self.say(&format!("mock(NM, '{at}').UpdateProperties(NM + '.Device', dict({properties}))\n"))
    }

    /// Starts ModemManager, with a modem that is connected by LTE.
    pub fn modem_manager(&self, interface: &str) -> Result<Process> {
        let name = "org.freedesktop.ModemManager1";
        let at = ["--is-object-manager", name, "/org/freedesktop/ModemManager1", name];
        let service = self.service(&at, name)?;
        self.say(&format!(
            "manager = mock(MM, '/org/freedesktop/ModemManager1')\n\
             at = '/org/freedesktop/ModemManager1/Modem/0'\n\
             manager.AddObject(at, MM + '.Modem', dict(State=i(11), AccessTechnologies=u(1 << 14),\n\
             \x20   SignalQuality=dbus.Struct((u(60), True), signature='ub'), Bearers=dbus.Array([], 'o'),\n\
             \x20   Ports=dbus.Array([('cdc-wdm0', u(6)), ('{interface}', u(2))], '(su)')), dbus.Array([], '(ssss)'))\n\
             mock(MM, at).AddProperties(MM + '.Modem.Modem3gpp', dict(RegistrationState=u(1)))\n\
             OBJECTS = 'org.freedesktop.DBus.ObjectManager'\n\
             root = bus.get_object(MM, '/org/freedesktop/ModemManager1')\n\
             found = root.GetManagedObjects(dbus_interface=OBJECTS)[at]\n\
             manager.EmitSignal(OBJECTS, 'InterfacesAdded', 'oa{{sa{{sv}}}}', [dbus.ObjectPath(at), found])\n"
        ))?;
        Ok(service)
    }

    /// Has ModemManager say this of its modem: an interface below its own, and properties as Python writes them.
    pub fn modem(&self, interface: &str, properties: &str) -> Result<()> {
        let at = "/org/freedesktop/ModemManager1/Modem/0";
        self.say(&format!("mock(MM, '{at}').UpdateProperties(MM + '.{interface}', dict({properties}))\n"))
    }

    /// Starts a service, and waits until the bus has its name.
    fn service(&self, arguments: &[&str], bus_name: &str) -> Result<Process> {
        let command = self.with_bus(self.host.command(PYTHON).args(["-u", "-m", "dbusmock"]).args(arguments));
        let mut service = command.label(bus_name).spawn()?;
        let there = || {
            let asks =
                self.host.command("dbus-send").args(["--system", "--print-reply", "--dest=org.freedesktop.DBus"]);
            let asks = asks.args(["/", "org.freedesktop.DBus.NameHasOwner", &format!("string:{bus_name}")]);
            self.with_bus(asks).run().is_ok_and(|said| said.contains("true"))
        };
        wait_until(WITHIN, "the service is there", || !service.is_running() || there())?;
        expect!(service.is_running(), "{bus_name} ended: {}", service.stderr());
        Ok(service)
    }

    /// Runs a program that tells a service what to say.
    fn say(&self, program: &str) -> Result<()> {
        self.with_bus(self.host.command(PYTHON).arg("-").stdin(format!("{BEGIN}{program}"))).run().map(drop)
    }

    /// A command that has this bus for the system's and for its session's.
    pub fn with_bus(&self, command: crate::Cmd) -> crate::Cmd {
        let address = self.host.bus_address();
        command.env("DBUS_SYSTEM_BUS_ADDRESS", &address).env("DBUS_SESSION_BUS_ADDRESS", &address)
    }
}
