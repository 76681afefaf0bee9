//! The `starling-bootstrap` program as a user sees it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Long enough for the slowest machine; no test measures it.
const DEADLINE: Duration = Duration::from_secs(60);

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

/// For each of these words, in their order: the rest of the first line of standard output that begins with it.
fn said<const N: usize>(running: &mut Running, words: [&str; N]) -> [String; N] {
    let mut lines = BufReader::new(running.0.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    words.map(|word| lines.find_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).unwrap())
}

/// One metric of a running program from its metrics page; `None` if it is not there.
fn metric(url: &str, name: &str) -> Option<f64> {
    let host = url.strip_prefix("http://").unwrap().strip_suffix("/metrics").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200"), "{page}");
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until a metric has reached a value.
fn wait_for_metric(url: &str, name: &str, least: f64) {
    let deadline = Instant::now() + DEADLINE;
    while metric(url, name).is_none_or(|value| value < least) {
        assert!(Instant::now() < deadline, "{name} is {:?}, not {least}", metric(url, name));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn it_prints_its_full_address_and_stops_on_a_signal() {
    let home = tempfile::tempdir().unwrap();
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let mut running = Running(program(home.path(), &["--listen", "/ip4/127.0.0.1/tcp/0"]).spawn().unwrap());
        let [address] = said(&mut running, ["listening "]);
        starling_bootstrap::addresses::parse_with_peer(&address).unwrap();
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
    let metrics = next();
    assert_eq!(metrics["event"], "metrics");
    assert!(metrics["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "loopback only: {metrics}");
    let listening = next();
    assert_eq!(listening["event"], "listening");
    assert!(listening["address"].as_str().unwrap().ends_with(started["peer"].as_str().unwrap()));
}

#[test]
fn metrics_tell_of_peers_refusals_and_places() {
    let home = tempfile::tempdir().unwrap();
    let mut running = Running(program(home.path(), &["--listen", "/ip4/127.0.0.1/tcp/0"]).spawn().unwrap());
    let [url, address] = said(&mut running, ["metrics ", "listening "]);
    for quiet in ["starling_connected_peers", "starling_relay_reservations", "starling_relay_circuits"] {
        assert_eq!(metric(&url, quiet), Some(0.0), "{quiet}");
    }
    let other_home = tempfile::tempdir().unwrap();
    let args = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &address, "--metrics", "off"];
    let _other = Running(program(other_home.path(), &args).spawn().unwrap());
    wait_for_metric(&url, "starling_connected_peers", 1.0);
    let split = starling_bootstrap::addresses::parse_with_peer(&address).unwrap();
    let port = split.address.to_string().rsplit('/').next().unwrap().parse::<u16>().unwrap();
    TcpStream::connect(("127.0.0.1", port)).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wait_for_metric(&url, "starling_refused_total{reason=\"incoming_connection\"}", 1.0);
}

/// Logs may go to files.
#[test]
fn a_log_that_is_no_terminal_has_no_colours() {
    let home = tempfile::tempdir().unwrap();
    let args = ["--listen", "/ip4/127.0.0.1/tcp/0", "--log", "debug"];
    let mut running = Running(program(home.path(), &args).spawn().unwrap());
    let [address] = said(&mut running, ["listening "]);
    let other_home = tempfile::tempdir().unwrap();
    let args = ["--listen", "/ip4/127.0.0.1/tcp/0", "--bootstrap", &address];
    let _other = Running(program(other_home.path(), &args).spawn().unwrap());
    said(&mut running, ["connected "]);
    rustix::process::kill_process(rustix::process::Pid::from_child(&running.0), rustix::process::Signal::TERM).unwrap();
    let mut log = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.contains("DEBUG") && log.contains("connected"), "{log}");
    assert!(!log.contains('\x1b'), "{log}");
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
fn a_mistake_of_the_user_ends_with_status_2_and_names_the_cure() {
    let home = tempfile::tempdir().unwrap();
    let config = home.path().join("b.toml");
    std::fs::write(&config, "lisen = []\n").unwrap();
    let cases: [(&[&str], &str); 7] = [
        (&["--lisen", "x"], "--listen"),
        (&["--config", config.to_str().unwrap()], "did you mean `listen`"),
        (&["--listen", "127.0.0.1:7400"], "/ip4/127.0.0.1/tcp/7400"),
        (&["--bootstrap", "/ip4/127.0.0.1/tcp/7400"], "/p2p/"),
        (&["--bootstrap", "no-such-file.txt"], "no-such-file.txt"),
        (&["--log", "=="], "--log"),
        (&["--metrics", "9100"], "127.0.0.1:9100"),
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
    let [address] = said(&mut first, ["listening "]);
    let address = address.split("/p2p/").next().unwrap().to_owned();
    let mut second = program(home.path(), &["--listen", &address, "--log", "error"]).spawn().unwrap();
    assert_eq!(second.wait().unwrap().code(), Some(1));
    let mut stderr = String::new();
    second.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(stderr.contains("in use"), "{stderr}");
}
