//! Which part of a crate may use which: the layers and roles of `protocol` and of `daemon`.
//!
//! Calls go down: a file may import from its own part and from layers below, a role from no other role. What breaks
//! that today is counted, and the counts are held against `xtask/layers.txt` and `xtask/layers-daemon.txt`: they may
//! only fall.

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::failure::{Failure, OnObject};
use crate::workspace::files;
use source::Source;

/// A crate in layers.
struct Layered {
    /// Where its sources are.
    sources: &'static str,
    /// Where its counts are recorded.
    baseline: &'static str,
    /// The layers by their folders, with how high each stands. Two of the same height do not know each other. The first
    /// that a module begins with is its own; `*` is any one folder.
    layers: &'static [(&'static str, u8)],
    /// The object that is to be small: what others declare of it, and what of that is called.
    object: &'static str,
    /// The front desk, which may have methods of it.
    desk: &'static str,
    /// Whether the lengths of files and functions count.
    sizes: bool,
}

const PROTOCOL: Layered = Layered {
    sources: "crates/protocol/src",
    baseline: "xtask/layers.txt",
    layers: &[("base", 0), ("session", 1), ("path", 2), ("flow", 3), ("binding", 4), ("role", 5), ("node", 6)],
    object: "Node",
    desk: "node",
    sizes: false,
};

/// Executors of the host know no role, and neither an executor nor a role's part of the local API knows the loop, which
/// is the front desk.
const DAEMON: Layered = Layered {
    sources: "crates/daemon/src",
    baseline: "xtask/layers-daemon.txt",
    layers: &[
        ("clock", 0),
        ("closing", 0),
        ("work", 0),
        ("reactor", 0),
        ("shown", 0),
        ("apart", 0),
        ("store/files", 0),
        ("store", 1),
        ("installed", 1),
        ("community_file", 1),
        ("event_log", 1),
        ("events", 1),
        ("observe", 1),
        ("metrics", 5),
        ("policy/config", 3),
        ("policy", 1),
        ("config/conditions", 2),
        ("config/document", 2),
        ("config/value", 1),
        ("config", 5),
        ("name_server", 4),
        ("host", 3),
        ("link", 4),
        ("role/*/api", 7),
        ("role/programs", 7),
        ("role", 4),
        ("effects", 5),
        ("api/views", 4),
        ("api", 6),
        ("event_loop", 8),
        ("log", 9),
        ("doctor", 9),
        ("clean", 9),
    ],
    object: "EventLoop",
    desk: "event_loop",
    sizes: true,
};

/// A part of the crate: a layer, or one of the roles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part<'a> {
    height: u8,
    name: &'a str,
}

impl<'a> Part<'a> {
    /// The part that a module belongs to, by the folders that it is in.
    fn of(layers: &[(&str, u8)], module: &'a str) -> Option<Self> {
        let folders = || module.split('/');
        let begins = |layer: &str| {
            let mut own = folders();
            layer.split('/').all(|folder| own.next().is_some_and(|own| folder == "*" || folder == own))
        };
        let (layer, height) = layers.iter().find(|(layer, _)| begins(layer))?;
        let name = match (*layer, folders().nth(1)) {
            ("role", Some(role)) => &module[..layer.len() + 1 + role.len()],
            _ => module.match_indices('/').nth(layer.matches('/').count()).map_or(module, |(end, _)| &module[..end]),
        };
        Some(Self { height: *height, name })
    }

    /// Whether this part may use the other. What all roles have in common is each one's.
    fn may_use(self, other: Self) -> bool {
        let is_inside = self.name.strip_prefix(other.name).is_some_and(|rest| rest.starts_with('/'));
        self.name == other.name || is_inside || self.height > other.height
    }
}

/// Counts that may only fall.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts(BTreeMap<String, usize>);

impl Counts {
    fn parse(text: &str) -> Option<Self> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        let count = |line: &str| {
            let (name, count) = line.split_once(" = ")?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        lines.map(count).collect::<Option<_>>().map(Self)
    }

    fn render(&self) -> String {
        let mut text =
            "# What breaks the law of the layers (ARCHITECTURE.md). Each may only fall: `cargo run -p xtask -- edges \
                        --record`\n"
                .to_owned();
        for (name, count) in &self.0 {
            let _ = writeln!(text, "{name} = {count}");
        }
        text
    }
}

/// What was found in a crate: a count for each rule, and what was counted.
#[derive(Debug, Default)]
struct Found(BTreeMap<String, Vec<String>>);

const UPWARD_IMPORTS: &str = "imports against the layers";
const UPWARD_CALLS: &str = "calls of Node's methods against the layers";
const CIRCLE: &str = "files in the largest circle of imports";
const NODE_FILES: &str = "files with `impl Node` outside the front desk";
/// A value that is only made and read may have open fields; what changes itself may not.
const OPEN_FIELDS: &str = "open fields of what has methods that change it";
/// In lines, without tests.
const LONGEST_FILE: usize = 800;
/// In lines.
const LONGEST_FUNCTION: usize = 100;

const LONG_FILES: &str = "files of more than 800 lines";
const LONG_FUNCTIONS: &str = "functions of more than 100 lines";

impl Found {
    fn counts(&self) -> Counts {
        Counts(self.0.iter().map(|(name, found)| (name.clone(), found.len())).collect())
    }

    /// Sentences about the counts that have risen, with what was counted, and about those that fell.
    fn compare(&self, sources: &str, baseline: &Counts) -> (Vec<String>, Vec<String>) {
        let (mut risen, mut fallen) = (Vec::new(), Vec::new());
        for (name, found) in &self.0 {
            let (now, before) = (found.len(), baseline.0.get(name).copied().unwrap_or_default());
            if now > before {
                risen.push(format!("{sources}: {name}: {now}, and {before} before:\n    {}", found.join("\n    ")));
            } else if now < before {
                fallen.push(format!("{sources}: {name}: {now}, and {before} before: record it (`edges --record`)"));
            }
        }
        (risen, fallen)
    }
}

/// What has become worse than it was, and what has become better and is not recorded, as sentences.
pub(crate) fn faults(root: &Path) -> Result<(Vec<String>, Vec<String>), Failure> {
    let (mut faults, mut better) = (Vec::new(), Vec::new());
    for of in [&PROTOCOL, &DAEMON] {
        let (found, misplaced) = examine(of, &read(of, root)?);
        let path = root.join(of.baseline);
        let text = fs::read_to_string(&path).failed("read", path.display())?;
        let Some(baseline) = Counts::parse(&text) else {
            return Err(Failure::new(format!("{} has a line that is not `name = number`", of.baseline)));
        };
        let (risen, fallen) = found.compare(of.sources, &baseline);
        faults.extend(misplaced.into_iter().chain(risen));
        better.extend(fallen);
    }
    Ok((faults, better))
}

/// Records the counts as they are now.
pub(crate) fn record(root: &Path) -> Result<(), Failure> {
    for of in [&PROTOCOL, &DAEMON] {
        let (found, _) = examine(of, &read(of, root)?);
        let path = root.join(of.baseline);
        fs::write(&path, found.counts().render()).failed("write", path.display())?;
    }
    Ok(())
}

fn read(of: &Layered, root: &Path) -> Result<BTreeMap<String, Source>, Failure> {
    let sources = root.join(of.sources);
    let mut found = BTreeMap::new();
    for path in files(&sources, "rs")? {
        let module = path.strip_prefix(&sources).unwrap_or(&path).with_extension("").display().to_string();
        let module = module.strip_suffix("/mod").unwrap_or(&module).to_owned();
        if module.split('/').any(|name| name == "tests") {
            continue;
        }
        let text = fs::read_to_string(&path).failed("read", path.display())?;
        found.insert(if module == "lib" { String::new() } else { module }, Source::parse(&text));
    }
    Ok(found)
}

/// Holds the modules of a crate, by their paths, against the layers. Second: modules that belong to no layer, as
/// sentences.
fn examine(of: &Layered, modules: &BTreeMap<String, Source>) -> (Found, Vec<String>) {
    let mut faults = Vec::new();
    let imports: Edges<'_> =
        modules.iter().map(|(name, source)| (name.as_str(), imports(modules, name, source))).collect();
    let calls = calls(of.object, modules);
    let mut found = Found::default();
    for (what, edges) in [(UPWARD_IMPORTS, &imports), (UPWARD_CALLS, &calls)] {
        let pairs = edges.iter().flat_map(|(from, to)| to.iter().map(move |to| (*from, *to)));
        let upward = pairs.filter(|(from, to)| {
            // The file of a folder passes on what is in it.
            let inside = to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/'));
            !inside
                && Part::of(of.layers, from).zip(Part::of(of.layers, to)).is_some_and(|(from, to)| !from.may_use(to))
        });
        found.0.insert(what.to_owned(), upward.map(|(from, to)| format!("{from} -> {to}")).collect());
    }
    found.0.insert(CIRCLE.to_owned(), largest_circle(&imports));
    let (mut node_files, mut long_files, mut long_functions) = (Vec::new(), Vec::new(), Vec::new());
    let mut fields = Vec::new();
    let changing = changing(modules);
    for (name, source) in modules.iter().filter(|(name, _)| !name.is_empty()) {
        let methods = source.methods_of(of.object);
        match Part::of(of.layers, name) {
            None => {
                let faults_of =
                    format!("{}/{name}.rs belongs to no layer: it is to be in the folder of one", of.sources);
                faults.push(faults_of);
            }
            Some(part) if part.name != of.desk && !methods.is_empty() => node_files.push(name.clone()),
            Some(_) => {}
        }
        long_files.extend((source.lines() > LONGEST_FILE).then(|| name.clone()));
        long_functions.extend(source.functions_over(LONGEST_FUNCTION).map(|function| format!("{name}: {function}")));
        let open = source.open_fields().into_iter().filter(|(of, _)| changing.contains(&(name, of)));
        fields.extend(open.map(|(of, field)| format!("{name}: {of}.{field}")));
    }
    found.0.insert(NODE_FILES.to_owned(), node_files);
    found.0.insert(OPEN_FIELDS.to_owned(), fields);
    if of.sizes {
        found.0.insert(LONG_FILES.to_owned(), long_files);
        found.0.insert(LONG_FUNCTIONS.to_owned(), long_functions);
    }
    let of_object = |(what, found): (String, Vec<String>)| (what.replace("Node", of.object), found);
    (Found(found.0.into_iter().map(of_object).collect()), faults)
}

/// The types that have methods which change them, wherever these stand: each with where it is declared.
fn changing(modules: &BTreeMap<String, Source>) -> BTreeSet<(&str, &str)> {
    let mut found = BTreeSet::new();
    for (name, source) in modules {
        for of in source.changing() {
            let imported = source.imported_as(of).and_then(|path| resolve(modules, name, path, 0));
            found.insert((imported.unwrap_or(name), of));
        }
    }
    found
}

type Edges<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// The modules that a module names, where a name that passes through others counts as that of where it is declared.
fn imports<'a>(modules: &'a BTreeMap<String, Source>, name: &str, source: &Source) -> BTreeSet<&'a str> {
    let paths = source.paths();
    paths.iter().filter_map(|path| resolve(modules, name, path, 0)).filter(|to| *to != name && !to.is_empty()).collect()
}

/// The module in which a path that stands in another leads to something.
fn resolve<'a>(modules: &'a BTreeMap<String, Source>, from: &str, path: &[String], depth: usize) -> Option<&'a str> {
    const DEEPEST: usize = 8;
    let mut at = from.to_owned();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (String::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                at = at.rsplit_once('/').map_or(String::new(), |(up, _)| up.to_owned());
                rest = &rest[1..];
            }
        }
        // A path that begins with a name is about a module below this one, or not about this crate.
        first => {
            modules.get_key_value(&below(&at, first))?;
        }
    }
    while let Some((name, more)) = rest.split_first() {
        let inner = below(&at, name);
        if modules.contains_key(&inner) {
            (at, rest) = (inner, more);
            continue;
        }
        let passed_on = modules.get(&at).and_then(|source| source.imported_as(name)).filter(|_| depth < DEEPEST);
        if let Some(found) = passed_on.and_then(|path| resolve(modules, &at, path, depth + 1)) {
            return Some(found);
        }
        break;
    }
    modules.get_key_value(&at).map(|(name, _)| name.as_str())
}

fn below(module: &str, name: &str) -> String {
    if module.is_empty() { name.to_owned() } else { format!("{module}/{name}") }
}

/// Which modules call methods of an object that others declare. These have a name once only, since they are of one
/// type.
fn calls<'a>(object: &str, modules: &'a BTreeMap<String, Source>) -> Edges<'a> {
    let mut declared: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, source) in modules {
        declared.extend(source.methods_of(object).into_iter().map(|method| (method, name.as_str())));
    }
    let called = |name: &str, source: &Source| -> BTreeSet<&str> {
        let methods = source.calls_within(object);
        methods.into_iter().filter_map(|method| declared.get(method).copied()).filter(|to| *to != name).collect()
    };
    modules.iter().map(|(name, source)| (name.as_str(), called(name, source))).collect()
}

/// The largest set of modules of which each reaches each other one; none where there is no circle.
fn largest_circle(edges: &Edges<'_>) -> Vec<String> {
    let reached = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = edges.get(from).into_iter().flatten().copied().collect();
        while let Some(at) = open.pop() {
            if seen.insert(at) {
                open.extend(edges.get(at).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> = edges.keys().map(|from| (*from, reached(from))).collect();
    let circle = |from: &str| -> Vec<String> {
        let back = reached[from].iter().filter(|to| reached.get(**to).is_some_and(|seen| seen.contains(from)));
        back.map(|to| (*to).to_owned()).collect()
    };
    edges.keys().map(|from| circle(from)).max_by_key(Vec::len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::root;

    fn modules(sources: &[(&str, &str)]) -> BTreeMap<String, Source> {
        let folders = ["base", "path", "flow", "role"].map(|folder| (folder, ""));
        let all = folders.iter().chain(sources);
        all.map(|(name, text)| ((*name).to_owned(), Source::parse(text))).collect()
    }

    fn found(sources: &[(&str, &str)], what: &str) -> Vec<String> {
        examine(&PROTOCOL, &modules(sources)).0.0.remove(what).unwrap()
    }

    #[test]
    fn the_layers_are_no_worse_than_recorded() {
        let (risen, _) = faults(&root()).unwrap();
        assert_eq!(risen, [] as [String; 0]);
    }

    #[test]
    fn a_module_belongs_to_its_folder() {
        let name = |module| Part::of(PROTOCOL.layers, module).map(|part| part.name);
        assert_eq!(name("base/time"), Some("base"));
        assert_eq!(name("role/gateway/opened"), Some("role/gateway"));
        assert_eq!((name("role"), name("node"), name("node/view")), (Some("role"), Some("node"), Some("node")));
        assert_eq!(name("unheard_of"), None);
        let of_daemon = |module| Part::of(DAEMON.layers, module).map(|part| (part.name, part.height));
        assert_eq!(of_daemon("role/anchor/api/returns"), Some(("role/anchor/api", 7)));
        assert_eq!(of_daemon("role/anchor/offer"), Some(("role/anchor", 4)));
        assert_eq!(of_daemon("host/hooks"), Some(("host", 3)));
        assert_eq!(examine(&PROTOCOL, &modules(&[("unheard_of", "")])).1.len(), 1);
    }

    #[test]
    fn calls_go_down_only() {
        let sources = [
            ("", "pub use base::time::Time; mod base;"),
            ("base/time", "use crate::session::Session;"),
            ("session", "use crate::Time;"),
            ("path/link", "use crate::flow::table::Table;"),
            ("flow/table", "fn f() { let a = crate::session::Session::new(); }"),
            ("role/gateway", "use crate::role::anchor::Lease; use crate::role::Role;"),
            ("role/anchor", "use crate::{flow, base::{time::Time}};"),
            ("node", "use crate::role::anchor::Lease;"),
        ];
        let upward = ["base/time -> session", "path/link -> flow/table", "role/gateway -> role/anchor"];
        assert_eq!(found(&sources, UPWARD_IMPORTS), upward);
    }

    #[test]
    fn a_name_that_is_passed_on_is_its_modules() {
        let sources = [
            ("", "pub use role::Lease;"),
            ("role", "mod anchor; pub(crate) use anchor::{Lease as Loan, Lease};"),
            ("role/anchor", "pub struct Lease; use super::Loan;"),
            ("base/time", "use crate::Lease; use crate::role::Loan;"),
        ];
        assert_eq!(found(&sources, UPWARD_IMPORTS), ["base/time -> role/anchor"]);
    }

    #[test]
    fn tests_comments_and_strings_import_nothing() {
        let text = "// crate::role::anchor\nconst S: &str = \"crate::role::anchor\"; /* crate::role::anchor */\n\
                    fn f<'a>(c: &'a char) { let q = '\"'; }\n\
                    #[cfg(test)]\nmod tests { use crate::role::anchor::Lease; }";
        assert_eq!(found(&[("role/anchor", ""), ("base/time", text)], UPWARD_IMPORTS), [] as [&str; 0]);
    }

    #[test]
    fn the_largest_circle_is_found() {
        let sources = [
            ("base/a", "use crate::base::b::B;"),
            ("base/b", "use crate::base::c::C; use super::d::D;"),
            ("base/c", "use crate::base::a::A;"),
            ("base/d", "use crate::base::e::E;"),
            ("base/e", "use crate::base::d::D;"),
        ];
        assert_eq!(found(&sources, CIRCLE), ["base/a", "base/b", "base/c"]);
        assert_eq!(found(&sources[..1], CIRCLE), [] as [&str; 0]);
    }

    #[test]
    fn methods_of_node_that_call_upward_are_found() {
        let sources = [
            (
                "base/time",
                "impl Node { fn tick(&mut self) { self.lend(); self.tock(); other.lend(); } fn tock(&self) {} }",
            ),
            (
                "role/anchor",
                "impl Node { pub(crate) fn lend(&mut self) { self.tock() } } \
                 impl Lease { fn tick(&self) { self.tick() } }",
            ),
            ("node", "impl Node { fn run(&mut self) { self.lend(); } }"),
        ];
        assert_eq!(found(&sources, UPWARD_CALLS), ["base/time -> role/anchor"]);
        assert_eq!(found(&sources, NODE_FILES), ["base/time", "role/anchor"]);
    }

    #[test]
    fn open_fields_are_counted() {
        let text = "pub(crate) struct A { pub(crate) x: u8, y: u8, pub(super) z: Vec<(u8, u8)>, pub w: u8 }\n\
                    struct B(pub(crate) u8, u8); pub(crate) fn f(a: u8) {} enum C { D { a: u8 } }\n\
                    impl<T: Ord> Tick for B where T: Ord { fn tick(&'a mut self) {} }\n\
                    struct V { pub(crate) x: u8 } impl V { fn with(mut self) -> Self { self } }";
        let other = "use crate::base::time::A; impl A { fn f(&mut self) {} }";
        let sources = [("base/time", text), ("base/other", other)];
        assert_eq!(found(&sources, OPEN_FIELDS), ["base/time: A.x", "base/time: A.w", "base/time: B.0"]);
    }

    #[test]
    fn counts_may_only_fall() {
        let mut found = Found::default();
        found.0.insert(CIRCLE.to_owned(), vec!["a".to_owned(), "b".to_owned()]);
        let of = |count: usize| Counts::parse(&format!("# why\n{CIRCLE} = {count}\n")).unwrap();
        let (risen, fallen) = found.compare("src", &of(1));
        assert!(risen.len() == 1 && risen[0].ends_with("2, and 1 before:\n    a\n    b") && fallen.is_empty());
        assert_eq!(found.compare("src", &of(2)), (Vec::new(), Vec::new()));
        let (risen, fallen) = found.compare("src", &of(3));
        assert!(risen.is_empty() && fallen.len() == 1);
        assert_eq!(Counts::parse(&found.counts().render()), Some(of(2)));
    }
}
