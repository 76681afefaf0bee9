use super::super::finding::Verdict::{self, Good};
use super::*;
use crate::config::run_file::RunFile;
use starling_kernels::DeviceKind;
use starling_protocol::Digest;
use starling_protocol::run::DataSpec;

/// The specification of a run with this preset.
fn spec(preset: &str) -> RunSpec {
    let text = format!("name = \"a\"\n[model]\npreset = \"{preset}\"\nvocab = 256\n");
    let file = RunFile::parse(&text, Path::new("RUN.toml")).expect("it parses");
    let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    file.spec(data, 256).expect("it is sound")
}

fn node(text: &str) -> NodeFile {
    toml::from_str(text).expect("a node file")
}

/// The verdict; what is not good has a mend.
fn verdict(finding: &Finding) -> Verdict {
    assert_eq!(finding.mend.is_none(), finding.verdict == Good, "{finding:?}");
    finding.verdict
}

#[test]
fn a_device_is_opened_as_a_start_would() {
    let (found, trains) = Opening::start(DeviceChoice::Cpu, 1).end();
    assert_eq!((verdict(&found), found.finding.as_str()), (Good, "cpu (1 thread); asked for"));
    assert_eq!(trains, Trains::Here);
    let (gone, trains) = Opening::start(DeviceChoice::Wgpu(999), 1).end();
    assert_eq!((verdict(&gone), trains), (Bad, Trains::OnADevice));
    assert!(gone.mend.is_some_and(|mend| mend.contains("--device cpu")));
}

#[test]
fn a_device_that_was_taken_for_want_of_a_better_one_is_doubtful() {
    let opened = |kind, name: &str, said: &str| Opened {
        device: DeviceInfo { kind, index: 0, name: name.into(), why: "auto: a test".into() },
        told: vec![said.into()],
    };
    let fell = "cuda:0 (a card) does not do: it has no NVRTC; the CPU trains instead";
    let found = opened(DeviceKind::Cpu, "2 threads", fell).finding();
    assert_eq!(verdict(&found), Doubtful);
    assert!(found.finding.starts_with("cpu (2 threads); auto: a test; cuda:0 (a card) does not do"), "{found:?}");
    let less = "cuda:0 (a card) has memory for 4 sequences at a time, and not for inner.batch = 8";
    let found = opened(DeviceKind::Cuda, "a card", less).finding();
    assert_eq!(verdict(&found), Good);
    assert!(found.finding.ends_with(less), "{found:?}");
}

#[test]
fn memory_and_disk_are_judged_for_the_run() {
    let home = tempfile::tempdir().expect("a folder");
    let small = memory(Some(&spec("0.1m")), 1, Trains::OnADevice, true);
    assert_eq!(verdict(&small), Good, "{small:?}");
    let mut huge = spec("1b");
    huge.model.layers = 1 << 10;
    let huge_memory = memory(Some(&huge), 1, Trains::Here, false);
    assert_eq!(verdict(&huge_memory), Bad);
    assert!(huge_memory.mend.is_some_and(|mend| mend.contains("model.preset")));
    let bounded = disk(Some(&spec("0.1m")), &node("[store]\nmax_gib = 0.001"), home.path());
    assert_eq!(verdict(&bounded), Bad);
    assert!(bounded.mend.is_some_and(|mend| mend.contains("store.max_gib")));
    let none = memory(None, 1, Trains::Here, true);
    assert_eq!(verdict(&none), Good);
    // How much is free here is not known; a mend is there if it is too little.
    verdict(&disk(None, &NodeFile::default(), &home.path().join("not/yet/there")));
}

#[test]
fn a_clock_before_the_newest_file_is_bad() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let of = |seconds: i64| {
        let change = Duration::from_secs(seconds.unsigned_abs());
        let changed = if seconds < 0 { now - change } else { now + change };
        clock_after(now, Some((changed, "a/file".into())))
    };
    assert_eq!((verdict(&of(-5)), verdict(&of(60))), (Good, Good), "clocks of file servers differ");
    assert_eq!(verdict(&clock_after(now, None)), Good);
    let late = of(86_400);
    assert_eq!((verdict(&late), late.finding.as_str()), (Bad, "the clock is 86400 s before the last change of a/file"));
}

#[test]
fn the_newest_file_is_found_in_all_folders() {
    let home = tempfile::tempdir().expect("a folder");
    assert_eq!(newest(&home.path().join("gone")), None);
    std::fs::create_dir(home.path().join("db")).expect("made");
    let (old, new) = (home.path().join("key"), home.path().join("db/log"));
    for (path, seconds) in [(&old, 1000), (&new, 2000)] {
        let file = std::fs::File::create(path).expect("made");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("set");
    }
    assert_eq!(newest(home.path()), Some((SystemTime::UNIX_EPOCH + Duration::from_secs(2000), new)));
}

#[test]
fn few_descriptors_are_told_with_the_number_to_set() {
    let of = |limit| verdict(&of_limit(limit));
    assert_eq!((of(None), of(Some(1 << 20)), of(Some(512))), (Good, Good, Good));
    assert_eq!((of(Some(511)), of(Some(64)), of(Some(63))), (Doubtful, Doubtful, Bad));
    assert_eq!(of_limit(Some(10)).mend.as_deref(), Some("`ulimit -n 512` before the start"));
}

#[test]
fn a_port_that_another_process_has_is_bad_and_that_of_the_own_node_is_good() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let at = taken.local_addr().expect("its address");
    let address = |text: String| -> Multiaddr { text.parse().expect("an address") };
    let listen = [address("/ip4/127.0.0.1/udp/0/quic-v1".into()), address(format!("/ip4/127.0.0.1/tcp/{}", at.port()))];
    let verdicts = |is_running| ports(&listen, is_running).iter().map(verdict).collect::<Vec<_>>();
    assert_eq!((verdicts(false), verdicts(true)), (vec![Good, Bad], vec![Good, Good]));
    assert_eq!((metrics("off", false), metrics("127.0.0.1:0", true)), (None, None));
    let bad = metrics(&at.to_string(), false).expect("it is taken");
    assert_eq!(verdict(&bad), Bad);
    assert!(bad.finding.ends_with("another process listens there"), "{bad:?}");
    assert_eq!(metrics(&at.to_string(), true).as_ref().map(verdict), Some(Good));
}
