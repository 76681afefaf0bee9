//! One ticket leads six joiners to its flock, whatever has become of the node that made it.

use serde_json::Value;
use starling_bootstrap::ticket::Ticket;
use starling_tests::flock::{Flock, NodeOptions, built_binaries};
use starling_tests::process::{Process, run};
use starling_tests::terminal::Terminal;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(120);
const JOINERS: usize = 6;
/// The inviter, its well-known peer, and the other member.
const NAMED: usize = 3;

/// Two nodes that train together, and a ticket that the first has made. What runs ends before its folder goes.
struct Bench {
    inviter: Process,
    member: Process,
    flock: Flock,
    ticket: String,
    /// The inviter's address in the ticket.
    address: String,
    _folder: TempDir,
}

fn flock() -> (TempDir, Flock) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text: String = (0..4000).map(|n| format!("line {n}: some text {}\n", n * 7919 % 1000)).collect();
    std::fs::write(folder.path().join("text.txt"), text).expect("write");
    let run_toml = "name = \"tickets\"\n[model]\npreset = \"0.1m\"\nseq_len = 64\n[data]\n\
                    sources = [\"text.txt\"]\nholdout = 0.1\n[inner]\nsteps = 4\nbatch = 2\n\
                    [partition]\ngrace_s = 3\n";
    let flock = Flock::start(&built_binaries().expect("the folder of this test"), folder.path(), run_toml);
    (folder, flock.expect("a bootstrap peer"))
}

impl Bench {
    fn new() -> Self {
        let (folder, flock) = flock();
        let mut inviter = flock.node("inviter", &NodeOptions::small(true)).expect("a node");
        inviter.wait(LIMIT, "founded", |_| true).expect("it founds");
        let mut member = flock.node("member", &NodeOptions::small(false)).expect("a node");
        for node in [&mut inviter, &mut member] {
            node.wait(LIMIT, "committed", |e| contributors(e) == 2).expect("both contribute");
        }
        let (ticket, address) = ticket(&flock);
        Self { inviter, member, flock, ticket, address, _folder: folder }
    }

    /// Six nodes that have nothing but the ticket join at once: each contributes to the member's flock.
    fn six_join(&mut self) {
        let by_ticket = NodeOptions { ticket: Some(self.ticket.clone()), ..NodeOptions::small(false) };
        let start = |n| self.flock.node(&format!("joiner-{n}"), &by_ticket).expect("a node");
        let mut joiners: Vec<Process> = (0..JOINERS).map(start).collect();
        for joiner in &mut joiners {
            let first = joiner.wait(LIMIT, "committed", contributes).expect("the joiner contributes");
            let same = self.member.wait(LIMIT, "committed", |e| e["lineage"] == first["lineage"]);
            same.expect("it is the member's flock");
            assert!(!joiner.events().iter().any(|e| e["event"] == "founded"), "{} founded another", joiner.name);
        }
    }
}

fn contributors(event: &Value) -> usize {
    event["contributors"].as_array().map_or(0, Vec::len)
}

/// Whether the node that tells of a commit has contributed to it.
fn contributes(event: &Value) -> bool {
    event["contributors"].as_array().is_some_and(|ids| ids.contains(&event["node"]))
}

/// The inviter's ticket, once it names the member, too; and the inviter's address in it.
fn ticket(flock: &Flock) -> (String, String) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let text = flock.invite("inviter").expect("a ticket");
        let ticket: Ticket = text.parse().expect("a ticket");
        let named: Vec<String> = ticket.addresses.iter().map(ToString::to_string).collect();
        if named.len() == NAMED && named[1] == flock.address {
            return (text, named[0].clone());
        }
        assert!(Instant::now() < deadline, "it does not name the member: {named:?}");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

/// Checks where the QR code of a ticket goes: below the ticket on a terminal that is wide enough, and into no pipe.
fn assert_code_beside_ticket(flock: &Flock) {
    let (program, home) = (flock.bin_dir.join("starling"), flock.home("inviter").to_string_lossy().into_owned());
    let arguments = ["invite", "--qr", "--home", &home].map(String::from);
    let is_code = |text: &str| ["█", "▀", "▄"].iter().all(|letter| text.contains(letter));
    let piped = run(&program, &arguments, LIMIT).expect("it ends");
    assert_eq!(piped.code, Some(0), "{}", piped.stderr);
    let alone = piped.stdout.strip_suffix('\n').expect("a line");
    assert_eq!(alone.parse::<Ticket>().expect("a ticket").to_string(), alone);
    assert!(is_code(&piped.stderr) && !piped.stderr.contains('\x1b'), "{}", piped.stderr);
    let on = |columns| {
        let terminal = Terminal { term: "xterm-256color", columns, rows: 60 };
        let (code, said) = terminal.run(&program, &arguments, LIMIT).expect("it ends");
        assert_eq!(code, Some(0), "{said}");
        let (ticket, below) = said.split_once("\r\n").expect("lines");
        ticket.parse::<Ticket>().expect("the first line is a ticket");
        below.to_owned()
    };
    let wide = on(100);
    assert!(is_code(&wide) && wide.starts_with("\x1b[38;5;16;48;5;231m"), "{wide:?}");
    let narrow = on(40);
    assert!(!is_code(&narrow) && narrow.contains("columns, and this terminal has 40"), "{narrow:?}");
}

#[test]
fn six_of_six_join_by_the_ticket_of_an_inviter_that_has_moved() {
    let mut bench = Bench::new();
    assert_code_beside_ticket(&bench.flock);
    bench.inviter.kill();
    // Another process takes the port, and says nothing to those who come.
    let port: u16 = bench.address.split('/').nth(4).and_then(|port| port.parse().ok()).expect("a port");
    let thief = TcpListener::bind(("127.0.0.1", port)).expect("it is free");
    let again = NodeOptions { again: true, ..NodeOptions::default() };
    bench.inviter = bench.flock.node("inviter", &again).expect("a node");
    let listening = bench.inviter.wait(LIMIT, "listening", |_| true).expect("it listens elsewhere");
    assert_ne!(listening["address"], bench.address);
    bench.inviter.wait(LIMIT, "committed", |e| contributors(e) == 2).expect("it is back");
    bench.six_join();
    drop(thief);
}

#[test]
fn six_of_six_join_by_the_ticket_of_an_inviter_that_is_gone_for_good() {
    let mut bench = Bench::new();
    let mark = bench.member.mark();
    bench.inviter.kill();
    let alone = |e: &Value| contributors(e) == 1;
    bench.member.wait_since(mark, LIMIT, "committed", alone).expect("the member goes on");
    bench.six_join();
}

#[test]
fn a_joiner_whose_ticket_nobody_answers_says_where_it_asks_and_asks_on() {
    let (_folder, mut flock) = flock();
    let mut inviter = flock.node("inviter", &NodeOptions::small(true)).expect("a node");
    inviter.wait(LIMIT, "founded", |_| true).expect("it founds");
    let ticket = flock.invite("inviter").expect("a ticket");
    inviter.kill();
    flock.bootstrap.kill();
    let by_ticket = NodeOptions { ticket: Some(ticket.clone()), ..NodeOptions::small(false) };
    let mut joiner = flock.node("joiner", &by_ticket).expect("a node");
    let log = flock.folder.join("logs").join("joiner.log");
    let deadline = Instant::now() + LIMIT;
    let said = loop {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let line = text.lines().find(|line| line.ends_with("; trying on"));
        if let Some(line) = line {
            break line.to_owned();
        }
        assert!(!joiner.has_exited() && Instant::now() < deadline, "{text}");
        std::thread::park_timeout(Duration::from_millis(100));
    };
    assert!(said.contains("nobody answers at the ticket's addresses ("), "{said}");
    let ticket: Ticket = ticket.parse().expect("a ticket");
    for address in ticket.addresses.iter().map(|of| &of.address) {
        assert!(said.contains(&format!("{address}: refused: ")), "{address}: {said}");
    }
    assert!(!joiner.has_exited(), "it asks on");
    joiner.terminate();
    joiner.wait_exit(Duration::from_secs(10)).expect("and has nothing to finish");
}
