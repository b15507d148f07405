//! Programs in C against the header and the library.

mod support;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{Directory, daemon, found_at, library_directory};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name)
}

fn headers() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

fn succeed(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}", output.status);
    output
}

fn compile(directory: &Directory, name: &str, link: &[String]) -> PathBuf {
    let program = directory.0.join(name);
    succeed(
        Command::new("cc")
            .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread", "-I"])
            .arg(headers())
            .arg(source(&format!("{name}.c")))
            .arg("-o")
            .arg(&program)
            .args(link),
    );
    program
}

fn shared() -> Vec<String> {
    let library = library_directory();
    vec![format!("-L{}", library.display()), "-l:libwhimbrel.so".into(), format!("-Wl,-rpath,{}", library.display())]
}

fn run(program: &Path, directory: &Directory) {
    run_as(program, directory, None);
}

fn run_as(program: &Path, directory: &Directory, user: Option<u32>) {
    // The library is named as it is installed (the soname); here it is found as it was built.
    let (key, run_dir) = found_at(directory);
    let link = directory.0.join("libwhimbrel.so.0");
    // Another user may not look where it was built.
    std::fs::copy(library_directory().join("libwhimbrel.so"), link).expect("copied");
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(program).env(key, run_dir).env("LD_LIBRARY_PATH", &directory.0).current_dir("/");
    if let Some(user) = user {
        limited.uid(user).gid(user);
    }
    let limited = limited.output().expect("run");
    let said = String::from_utf8_lossy(&limited.stderr);
    assert!(limited.status.success(), "{}: {}\n{said}", program.display(), limited.status);
    assert_eq!(limited.stdout, b"ok\n");
}

/// The manual page.
fn manual() -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/man/whimbrel.3");
    std::fs::read_to_string(page).expect("the page")
}

/// What stands there as it is typed.
fn displayed(page: &str) -> Vec<String> {
    let blocks = page.split(".Bd -literal -offset indent\n").skip(1);
    let block = |block: &str| block.split(".Ed\n").next().unwrap_or_default().replace("\\e", "\\");
    blocks.map(block).collect()
}

/// The structures that are declared with fields, by their names, without comments and space that means nothing.
fn structures(text: &str) -> std::collections::BTreeMap<String, String> {
    let mut bare = String::new();
    for (number, part) in text.split("/*").enumerate() {
        bare += if number == 0 { part } else { part.split_once("*/").map_or("", |(_, after)| after) };
    }
    let declared = bare.split("struct ").filter_map(|rest| {
        let (name, rest) = rest.split_once(" {")?;
        name.starts_with("wb_").then_some(())?;
        name.chars().all(|c| c == '_' || c.is_ascii_lowercase()).then_some((name, rest))
    });
    let names: Vec<String> = declared.map(|(name, _)| name.to_owned()).collect();
    let fields = |name: &String| {
        let (_, after) = bare.split_once(&format!("struct {name} {{"))?;
        let fields = after.split_once("};")?.0;
        Some((name.clone(), fields.split_whitespace().collect::<Vec<_>>().join(" ")))
    };
    names.iter().filter_map(fields).collect()
}

#[test]
fn the_manual_shows_every_structure_as_it_is() {
    let header = std::fs::read_to_string(headers().join("whimbrel.h")).expect("the header");
    let (declared, shown) = (structures(&header), structures(&displayed(&manual()).concat()));
    assert_eq!(declared.len(), 5, "{declared:?}");
    assert_eq!(shown, declared);
}

#[test]
fn the_programs_of_the_manual_can_be_compiled() {
    let directory = Directory::new("manual");
    let (mut whole, page) = (0, manual());
    for (number, text) in displayed(&page).iter().filter(|text| text.contains("\nmain(")).enumerate() {
        let source = directory.0.join(format!("{number}.c"));
        std::fs::write(&source, text).expect("write");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I"]).arg(headers()).arg(&source);
        succeed(compiler.arg("-o").arg(directory.0.join(format!("program{number}"))).args(shared()));
        whole += 1;
    }
    // One for each part: giving, receiving, an anchor elsewhere, names, processes, the migrator.
    assert_eq!(whole, 6);
}

#[test]
fn programs_start_from_the_build_tree() {
    let directory = Directory::new("tree");
    let library = library_directory();
    let program = compile(&directory, "plain", &[format!("-L{}", library.display()), "-lwhimbrel".into()]);
    let (key, run_dir) = found_at(&directory);
    let mut command = Command::new("timeout");
    let ran = succeed(command.arg("60").arg(program).env(key, run_dir).env("LD_LIBRARY_PATH", library));
    assert_eq!(ran.stdout, b"ok\n");
}

#[test]
fn without_a_daemon_sockets_are_plain() {
    let directory = Directory::new("plain");
    run(&compile(&directory, "plain", &shared()), &directory);
}

#[test]
fn who_may_not_ask_the_daemon_has_plain_sockets() {
    // SAFETY: takes and changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can be somebody else");
        return;
    }
    let directory = Directory::new("denied");
    daemon(&directory);
    std::fs::set_permissions(&directory.0, PermissionsExt::from_mode(0o755)).expect("mode");
    let socket = whimbrel_ipc::socket_path(&directory.0);
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o600)).expect("mode");
    run_as(&compile(&directory, "denied", &shared()), &directory, Some(65534));
}

#[test]
fn all_calls_do_what_they_say() {
    let directory = Directory::new("calls");
    daemon(&directory);
    run(&compile(&directory, "calls", &shared()), &directory);
}

#[test]
fn what_programs_do_wrong_is_told() {
    let directory = Directory::new("input");
    daemon(&directory);
    run(&compile(&directory, "input", &shared()), &directory);
}

#[test]
fn threads_do_not_disturb_one_another() {
    let directory = Directory::new("threads");
    daemon(&directory);
    run(&compile(&directory, "threads", &shared()), &directory);
}

#[test]
fn programs_of_the_thesis_work_and_so_does_the_archive() {
    let directory = Directory::new("sockmand");
    daemon(&directory);
    let archive = library_directory().join("libwhimbrel.a").display().to_string();
    let link = [archive, "-lpthread".into(), "-ldl".into(), "-lm".into(), "-lgcc_s".into()];
    run(&compile(&directory, "sockmand", &link), &directory);
}

#[test]
fn the_headers_are_c_of_1999_and_c_plus_plus_too() {
    let directory = Directory::new("dialects");
    let text = "#include \"libsockmand.h\"\nint main(void) { return wb_socket(2, 1, 0, NULL, 0) < 0; }\n";
    for (compiler, standard, name) in [("cc", "-std=c99", "a.c"), ("c++", "-std=c++11", "a.cpp")] {
        let path = directory.0.join(name);
        std::fs::write(&path, text).expect("written");
        let flags =
            [standard, "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
        succeed(Command::new(compiler).args(flags).arg("-I").arg(headers()).arg(path));
    }
}

#[test]
fn python_has_all_of_it() {
    let directory = Directory::new("python");
    daemon(&directory);
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    let (key, run_dir) = found_at(&directory);
    succeed(
        Command::new("timeout")
            .args(["60", "python3", "-B", "-W", "error", "-m", "unittest", "discover", "-s"])
            .arg(python.join("tests"))
            .env("PYTHONPATH", &python)
            .env("WHIMBREL_LIBRARY", library_directory().join("libwhimbrel.so"))
            .env(key, run_dir),
    );
}
