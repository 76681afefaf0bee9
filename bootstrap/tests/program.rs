//! The `starling-bootstrap` program as a user meets it.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

fn program(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_starling-bootstrap"));
    command.args(args).arg("--no-mdns").env("XDG_DATA_HOME", home).env_remove("RUST_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn output(args: &[&str]) -> (Output, String) {
    let home = tempfile::tempdir().unwrap();
    let output = program(home.path(), args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

/// A running program, killed when the test ends early.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn first_line(running: &mut Running) -> String {
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

#[test]
fn it_prints_its_full_address_and_stops_on_a_signal() {
    let home = tempfile::tempdir().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut running = Running(program(home.path(), &["--listen", "/ip4/127.0.0.1/tcp/0"]).spawn().unwrap());
        let line = first_line(&mut running);
        let address = line.strip_prefix("listening ").unwrap_or_else(|| panic!("{line}"));
        starling_bootstrap::addresses::parse_with_peer(address).unwrap();
        let pid = rustix::process::Pid::from_child(&running.0);
        rustix::process::kill_process(pid, signal).unwrap();
        assert_eq!(running.0.wait().unwrap().code(), Some(0));
    }
    assert!(home.path().join("starling/bootstrap/key").is_file(), "the identity is kept");
}

#[test]
fn json_lines_tell_the_same() {
    let home = tempfile::tempdir().unwrap();
    let mut running = Running(program(home.path(), &["--listen", "/ip4/127.0.0.1/tcp/0", "--json"]).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.as_mut().unwrap()).lines();
    let mut next = || serde_json::from_str::<serde_json::Value>(&lines.next().unwrap().unwrap()).unwrap();
    let started = next();
    assert_eq!(started["event"], "started");
    let listening = next();
    assert_eq!(listening["event"], "listening");
    assert!(listening["address"].as_str().unwrap().ends_with(started["peer"].as_str().unwrap()));
}

#[test]
fn a_port_in_use_is_one_line_and_exit_1() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("/ip4/127.0.0.1/tcp/{}", taken.local_addr().unwrap().port());
    let (output, stderr) = output(&["--listen", &address, "--log", "error"]);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.contains("is in use: another process listens there"), "{stderr}");
}

#[test]
fn what_the_user_got_wrong_is_exit_2_with_the_cure() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("b.toml");
    std::fs::write(&config, "lisen = []\n").unwrap();
    let cases: [(&[&str], &str); 6] = [
        (&["--lisen", "x"], "--listen"),
        (&["--config", config.to_str().unwrap()], "did you mean `listen`"),
        (&["--listen", "127.0.0.1:7400"], "/ip4/127.0.0.1/tcp/7400"),
        (&["--bootstrap", "/ip4/127.0.0.1/tcp/7400"], "/p2p/"),
        (&["--bootstrap", "no-such-file.txt"], "no-such-file.txt"),
        (&["--log", "=="], "--log"),
    ];
    for (args, help) in cases {
        let (output, stderr) = output(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(help), "{args:?}: {stderr}");
    }
}

#[test]
fn an_exposed_key_is_exit_1() {
    let home = tempfile::tempdir().unwrap();
    let key = home.path().join("key");
    std::fs::write(&key, [1u8; 32]).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let (output, stderr) = output(&["--key", key.to_str().unwrap(), "--listen", "/ip4/127.0.0.1/tcp/0"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr.contains("chmod 600"), "{stderr}");
}

#[test]
fn the_settings_can_be_printed() {
    let (output, _) = output(&["--print-config", "--relay", "--listen", "/ip4/127.0.0.1/tcp/9"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text.contains("listen = [\"/ip4/127.0.0.1/tcp/9\"]") && text.contains("mdns = false"), "{text}");
}

/// Two processes must not share a port although TCP sockets here allow it.
#[test]
fn a_second_process_cannot_take_the_same_port() {
    let home = tempfile::tempdir().unwrap();
    let mut first = Running(program(home.path(), &["--listen", "/ip4/127.0.0.1/tcp/0"]).spawn().unwrap());
    let line = first_line(&mut first);
    let address = line.trim().trim_start_matches("listening ").split("/p2p/").next().unwrap().to_owned();
    let mut second = program(home.path(), &["--listen", &address, "--log", "error"]).spawn().unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(1));
    let mut stderr = String::new();
    second.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("in use"), "{stderr}");
}
