//! Another release of the daemon takes the place of one that works.

use std::fs;
use std::path::{Path, PathBuf};

use whimbrel_ipc::Carrier;

use super::world::{LONG, SOME, World, all_run, carried_by, is_native, site, step};
use super::{Scenario, scenario};
use crate::{Error, Lab, Result, Side, Whimbrel, expect, wait_until};

pub(super) const SCENARIOS: &[Scenario] = &[
    scenario(
        "upgraded",
        "the program is replaced under moved and native connections, at either end, and the daemons are started anew: \
         all go on, and roam on",
        |lab| upgraded(lab, &[]),
    ),
    scenario(
        "upgraded-layout",
        "the same where what the daemon before has left in the kernel is laid out as this one cannot read it",
        |lab| upgraded(lab, &["flows", "bindings", "locators"]),
    ),
];

/// A map of the data plane as a release before this one might have had it: its values are longer. Put in the place of
/// the one that is pinned, which the programs that are attached go on with.
const OLDER: &str = r#"
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    buffer = ctypes.create_string_buffer(attributes.ljust(128, b"\0"), 128)
    # __NR_bpf
    number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
    result = libc.syscall(number, command, buffer, 128)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
for path in sys.argv[1:]:
    # BPF_MAP_CREATE: a hash table without memory of its own beforehand; BPF_OBJ_PIN.
    fd = bpf(0, struct.pack("<IIIII", 1, 40, 200, 64, 1))
    os.unlink(path)
    name = ctypes.create_string_buffer(path.encode())
    bpf(6, struct.pack("<QI", ctypes.addressof(name), fd))
"#;

/// Where a daemon's maps are pinned.
fn pins(daemon: &Whimbrel) -> Result<PathBuf> {
    let holds = |directory: &Path| directory.join("flows").exists();
    let below = |root: PathBuf| fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let own = daemon.run_dir().join("bpffs");
    below(own).find(|directory| holds(directory)).ok_or_else(|| {
        Error::Usage(format!("the daemon on {} has pinned nothing in its run directory", daemon.host().name()))
    })
}

fn upgraded(lab: &mut Lab, older: &[&str]) -> Result<()> {
    let mut world = World::new(lab, site("a"), site("b"))?;
    let (mut client, mut server) = world.daemons()?;
    let mut pair = world.stream()?;
    client.wait_introduced(&pair, LONG)?;
    let (a, b) = (world.a.clone(), world.b.clone());
    world.roam(&b)?;
    world.goes_on(&mut pair)?;
    carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
    let mut native = world.stream()?;
    client.wait_introduced(&native, LONG)?;
    for own in [true, false] {
        step(&format!("another release takes over on the {}", if own { "laptop" } else { "server" }));
        let daemon = if own { &mut client } else { &mut server };
        daemon.stop()?;
        pair.wait_progress(SOME, LONG)?;
        if !older.is_empty() {
            let pins = pins(daemon)?;
            let maps: Vec<String> = older.iter().map(|map| pins.join(map).display().to_string()).collect();
            daemon.host().command("python3").args(["-c", OLDER]).args(maps).run()?;
        }
        daemon.upgrade()?;
        pair.wait_progress(SOME, LONG)?;
        native.wait_progress(SOME, LONG)?;
        carried_by(&client, Side::Client, &pair, Carrier::Rewrite)?;
        let told = if own { &client } else { &server }.events(0)?;
        let odd = told.iter().filter(|event| matches!(event.kind.as_str(), "op-failed" | "flow-gone" | "key-mismatch"));
        expect!(odd.clone().count() == 0, "{:?}", odd.collect::<Vec<_>>());
    }
    step("the laptop roams on");
    client.wait_introduced(&native, LONG)?;
    world.roam(&a)?;
    world.goes_on(&mut pair)?;
    is_native(&client, Side::Client, &pair)?;
    world.goes_on(&mut native)?;
    carried_by(&client, Side::Client, &native, Carrier::Rewrite)?;
    world.finish(pair)?;
    world.finish(native)?;
    for daemon in [&mut client, &mut server] {
        daemon.stop()?;
        let said = daemon.cli(&["clean"])?;
        println!("    {}", said.trim().replace('\n', "; "));
        let left = || pins(daemon).is_err();
        wait_until(LONG, "nothing is left in the kernel", left)?;
        daemon.restart()?;
    }
    all_run(&mut [&mut client, &mut server])
}
