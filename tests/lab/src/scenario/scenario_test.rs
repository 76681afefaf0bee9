use super::*;

const SMALL: &str = "end_s = 10\n[[nodes]]\nname = \"eu\"\ncount = 2\n[[nodes]]\nname = \"us\"\n";

fn parse(text: &str) -> anyhow::Result<Scenario> {
    Scenario::parse(text, Path::new("a.toml"))
}

fn refusal(more: &str) -> String {
    format!("{:#}", parse(&format!("{SMALL}{more}")).expect_err(more))
}

#[test]
fn names_sites_and_links() {
    let scenario = parse(&format!("{SMALL}[[links]]\nbetween = [\"eu\", \"us\"]\ndelay_ms = 40\n")).unwrap();
    let names: Vec<&str> = scenario.topology.seats.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["eu-1", "eu-2", "us", "bootstrap"]);
    let link = |from: usize, to: usize| scenario.topology.links[from * 4 + to].delay.as_micros();
    assert_eq!((link(0, 2), link(2, 1), link(0, 1)), (40_000, 40_000, 100));
    assert_eq!(link(3, 2), 100, "the bootstrap peer is no node of that site");
    let ports: std::collections::BTreeSet<_> = scenario.topology.seats.iter().map(|s| s.port.address).collect();
    assert_eq!(ports.len(), 4, "each has an address of its own");
}

#[test]
fn one_way_is_one_way() {
    let text = format!("{SMALL}[[faults]]\nkind = \"cut\"\nat_s = 1\nfrom = \"eu\"\nto = \"us\"\n");
    let Plan::Links { pairs, .. } = parse(&text).unwrap().faults[0].plan.clone() else { panic!("links") };
    assert_eq!(pairs, [(0, 2), (1, 2)]);
    let text = format!("{SMALL}[[faults]]\nkind = \"cut\"\nat_s = 1\nbetween = [\"eu\"]\n");
    let Plan::Links { pairs, .. } = parse(&text).unwrap().faults[0].plan.clone() else { panic!("links") };
    assert_eq!(pairs, [(0, 1), (1, 0)], "within a site");
}

/// Faults of disks and clocks need the library; other faults do not.
#[test]
fn faults_of_disks_and_clocks() {
    let fault = |more: &str| {
        let text = format!("{SMALL}[[faults]]\nnodes = [\"us\"]\nat_s = 1\n{more}");
        let scenario = parse(&text).unwrap();
        (scenario.faults[0].plan.clone(), scenario.needs_shim())
    };
    let refuse = |refusal| (Plan::Refuse(refusal), true);
    for (more, plan) in [
        ("kind = \"slow-disk\"\nmillis = 300", (Plan::SlowDisk { delay: Duration::from_millis(300) }, true)),
        ("kind = \"disk-error\"", refuse(Refusal::Both)),
        ("kind = \"disk-error\"\ncalls = \"sync\"", refuse(Refusal::Syncs)),
        ("kind = \"disk-error\"\ncalls = \"write\"", refuse(Refusal::Writes)),
        ("kind = \"read-only\"", refuse(Refusal::ReadOnly)),
        ("kind = \"clock\"\njump_s = -86400", (Plan::Clock { by_ns: -86_400_000_000_000 }, true)),
        ("kind = \"delete-folder\"", (Plan::DeleteFolder, false)),
        ("kind = \"kill\"", (Plan::Kill { silent: false }, false)),
    ] {
        assert_eq!(fault(more), plan, "{more}");
    }
}

/// A fault waits for a phase that nodes report, or for the one that the lab follows itself.
#[test]
fn faults_wait_for_a_phase() {
    let fault = |more: &str| {
        let text = format!("{SMALL}[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\n{more}");
        parse(&text).unwrap().faults[0].when
    };
    let seconds = Duration::from_secs;
    for phase in [COMMITTING, "catchingup", "joining", "settling"] {
        let when = fault(&format!("at_phase = \"{phase}\"\nat_s = 7\ninto_s = 2\n"));
        assert_eq!(when, When::Phase { phase, earliest: seconds(7), into: seconds(2) });
    }
    let at_once = When::Phase { phase: "training", earliest: seconds(0), into: seconds(0) };
    assert_eq!(fault("at_phase = \"training\"\n"), at_once);
}

#[test]
fn groups_have_limits() {
    let text = format!("{SMALL}[[nodes]]\nname = \"poor\"\nlimits = {{ files = 64, memory_mib = 256 }}\n");
    let seats = parse(&text).unwrap().topology.seats;
    assert_eq!(seats[3].limits, Limits { files: Some(64), memory_mib: Some(256) });
    assert_eq!(seats[0].limits, Limits::default());
}

/// Wrong faults, each with its message.
const WRONG_FAULTS: &[(&str, &str)] = &[
    ("[[faults]]\nkind = \"kil\"\nat_s = 1\n", "line 7: there is no fault of kind \"kil\"; did you mean \"kill\"?"),
    ("[[faults]]\nkind = \"kill\"\nat_s = 1\n", "line 7: \"kill\" to whom?"),
    (
        "[[faults]]\nkind = \"kill\"\nnodes = [\"eu-3\"]\nat_s = 1\n",
        "line 7: there is no node, group or site called \"eu-3\"; did you mean \"eu-1\"?",
    ),
    ("[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\n", "line 7: say when it begins"),
    (
        "[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\nat_phase = \"voting\"\n",
        "at_phase is \"voting\": one of catchingup, joining, training, ready, reducing, settling, committing",
    ),
    (
        "[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\nat_phase = \"ready\"\nat_round = 3\n",
        "line 7: say when it begins",
    ),
    ("[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\nat_s = 1\ninto_s = 1\n", "into_s is a time after a phase"),
    (
        "[[faults]]\nkind = \"kill\"\nnodes = [\"us\"]\nat_s = 1\nloss = 0.5\n",
        "line 7: `loss` means nothing to \"kill\"",
    ),
    (
        "[[faults]]\nkind = \"link\"\nbetween = [\"eu\", \"us\"]\nat_s = 1\nloss = 2\n",
        "line 7: loss is 2, allowed is 0 to 1",
    ),
    ("[[faults]]\nkind = \"link\"\nbetween = [\"us\"]\nat_s = 1\nloss = 1\n", "line 7: that names no two machines"),
    (
        "[[faults]]\nkind = \"flap\"\nbetween = [\"eu\", \"us\"]\nat_s = 1\n",
        "goes on until it is undone: say lasting_s",
    ),
    ("[[faults]]\nkind = \"fill\"\nnodes = [\"us\"]\nat_s = 1\n", "us has no disk of its own to fill"),
    ("[[faults]]\nkind = \"damage\"\nnodes = [\"us\"]\nat_s = 1\nfile = \"../x\"\n", "which file?"),
    (
        "[[faults]]\nkind = \"slow-disk\"\nnodes = [\"us\"]\nat_s = 1\n",
        "line 7: how slow? say millis = 1 to 60000, by which each write and each sync takes longer",
    ),
    ("[[faults]]\nkind = \"slow-disk\"\nnodes = [\"us\"]\nat_s = 1\nmillis = 1e6\n", "say millis = 1 to 60000"),
    (
        "[[faults]]\nkind = \"disk-error\"\nnodes = [\"us\"]\nat_s = 1\ncalls = \"fsync\"\n",
        "line 7: calls is \"fsync\": \"sync\" or \"write\"",
    ),
    ("[[faults]]\nkind = \"read-only\"\nat_s = 1\n", "line 7: \"read-only\" to whom?"),
    (
        "[[faults]]\nkind = \"read-only\"\nnodes = [\"us\"]\nat_s = 1\nmillis = 5\n",
        "line 7: `millis` means nothing to \"read-only\", which reads nodes, pick",
    ),
    ("[[faults]]\nkind = \"clock\"\nnodes = [\"us\"]\nat_s = 1\n", "line 7: how far? say jump_s"),
    ("[[faults]]\nkind = \"clock\"\nnodes = [\"us\"]\nat_s = 1\njump_s = 1e10\n", "at most 3150000000 seconds"),
    (
        "[[faults]]\nkind = \"clock\"\nnodes = [\"bootstrap\"]\nat_s = 1\njump_s = 1\n",
        "\"clock\" is for nodes, not for bootstrap peers",
    ),
    ("[[faults]]\nkind = \"delete-folders\"\nnodes = [\"us\"]\nat_s = 1\n", "did you mean \"delete-folder\"?"),
    ("[[faults]]\nkind = \"kill\"\nnodes = [\"eu\"]\npick = 3\nat_s = 1\n", "pick must be 1 to 2"),
    ("[[faults]]\nkind = \"rebind\"\nnodes = [\"us\"]\nat_s = 1\n", "us is behind no router: give it nat"),
    (
        "[[faults]]\nkind = \"wipe\"\nnodes = [\"us\"]\nat_s = 1\nlasting_s = 3\n",
        "\"wipe\" cannot be undone: leave lasting_s out",
    ),
    (
        "[[faults]]\nkind = \"freeze\"\nnodes = [\"us\"]\nat_s = 1\nlasting_s = 9\n\
         [[faults]]\nkind = \"slow\"\nnodes = [\"us\"]\nat_s = 2\nlasting_s = 3\nshare = 0.5\n",
        "line 12: it sets whether the process runs while the fault of line 7 does, and would undo it",
    ),
];

/// Other wrong tables, each with its message.
const WRONG_TABLES: &[(&str, &str)] = &[
    ("[[fault]]\n", "unknown key `fault` at line 7; did you mean `faults`?"),
    ("[[nodes]]\nname = \"poor\"\nlimits = { files = 3 }\n", "limits.files is 3, allowed is 16 to 16777216"),
    ("[[nodes]]\nname = \"poor\"\nlimits = { memory = 3 }\n", "unknown key `memory`"),
    ("[[expect.exits]]\nnode = \"mars\"\ncode = 1\n", "called \"mars\""),
    ("[[nodes]]\nname = \"eu\"\n", "line 7: there are nodes called \"eu\" already"),
    ("[[nodes]]\nname = \"all\"\n", "is no name for nodes"),
    ("[[nodes]]\nname = \"many\"\ncount = 100\n", "at most 64 nodes"),
    ("[[nodes]]\nname = \"home\"\nline = \"dls\"\n", "there is no line called \"dls\"; did you mean \"dsl\"?"),
    ("[network]\npreset = \"homs\"\n", "did you mean \"homes\"?"),
    ("[bootstrap]\nsite = \"mars\"\n", "where no node is"),
    ("[[links]]\nbetween = [\"eu\", \"mars\"]\n", "line 7: there is no node, group or site called \"mars\""),
    ("[[nodes]]\nname = \"x\"\nmutation = \"half-quorums\"\n", "did you mean \"half-quorum\"?"),
    ("[[nodes]]\nname = \"x\"\nmutation = \"half-quorum\"\nprogram = \"p\"\n", "leave `program` out"),
    ("[[nodes]]\nname = \"bootstrap-eu\"\n", "is no name for nodes"),
    ("[[nodes]]\nname = \"x\"\ndisk_mib = 0\n", "line 7: disk_mib is in memory: 1 to 4096"),
    ("[[nodes]]\nname = \"x\"\nprogram = \"starling-stranger\"\n", "say later = true"),
    ("[[expect.exits]]\nnode = \"eu\"\ncode = 1\n", "\"eu\" is no single node"),
    ("[[expect.counted]]\nmetric = \"m\"\nnode = \"bootstrap\"\nleast = 1\n", "bootstrap peers are not asked"),
    ("[expect]\ngiven_up = 2\n", "expect.given_up is 2, allowed is 0 to 1"),
    ("[expect]\nmax_gap = 3\n", "did you mean `max_gap_s`?"),
    ("[expect]\nmay_lag = [\"mars\"]\n", "called \"mars\""),
];

/// A wrong file gives one message that names the line, and the nearest right word.
#[test]
fn wrong_scenarios_are_refused() {
    for (more, told) in WRONG_FAULTS.iter().chain(WRONG_TABLES).copied() {
        let said = refusal(more);
        assert!(said.contains(told), "{more}: {said}");
    }
    let text = format!("must_fail = [\"parties\"]\n{SMALL}");
    assert!(
        format!("{:#}", parse(&text).unwrap_err()).contains("there is no check called \"parties\"; there are together")
    );
    let text = SMALL.replace("end_s = 10\n", "");
    assert!(format!("{:#}", parse(&text).unwrap_err()).contains("say when it ends"));
    let text = SMALL.replace("\"us\"", "\"us\"\nlater = true").replace("count = 2", "later = true");
    assert!(format!("{:#}", parse(&text).unwrap_err()).contains("nobody is there at the beginning"));
}

#[test]
fn a_name_means_the_same_everywhere() {
    let text = format!("{SMALL}[[nodes]]\nname = \"own\"\nprogram = \"starling\"\n[expect]\nmay_lag = [\"all\"]\n");
    let scenario = parse(&text).unwrap();
    let lags: Vec<bool> = (0..scenario.topology.seats.len())
        .map(|n| Expect::lists(&scenario.expect.may_lag, &scenario.topology, n))
        .collect();
    assert_eq!(lags, [true, true, true, true, false], "all nodes, and no bootstrap peer");
    assert!(!scenario.runs_another_program("own"), "it is our own program by name");
    // Two faults in sequence may set the same property.
    let fault = |at: u32| format!("[[faults]]\nkind = \"freeze\"\nnodes = [\"us\"]\nat_s = {at}\nlasting_s = 3\n");
    assert!(parse(&format!("{SMALL}{}{}", fault(1), fault(4))).is_ok());
}

#[test]
fn files_of_a_folder_come_in_order() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b.toml", "a.toml", "notes.md"] {
        std::fs::write(folder.path().join(name), SMALL).unwrap();
    }
    let found = files(folder.path()).unwrap();
    let names: Vec<_> = found.iter().filter_map(|p| p.file_name()?.to_str()).collect();
    assert_eq!(names, ["a.toml", "b.toml"]);
    assert!(files(&folder.path().join("none")).is_err());
}

/// Every scenario of the repository loads.
#[test]
fn shipped_scenarios_are_fine() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/lab");
    let mut names = std::collections::BTreeSet::new();
    let folders = ["", "quick", "full", "real-size", "soak", "mutated"].map(|name| folder.join(name));
    for folder in folders {
        for file in files(&folder).unwrap() {
            let scenario = Scenario::load(&file).unwrap();
            for bug in scenario.topology.seats.iter().filter_map(|s| s.mutation.as_deref()) {
                assert_eq!(bug, scenario.name, "a mutation's scenario has its name");
                assert!(!scenario.must_fail.is_empty(), "{bug} must be found");
            }
            assert!(!scenario.about.is_empty(), "{} says what it is about", file.display());
            assert!(
                scenario.name == "churn" || names.insert(scenario.name.clone()),
                "two are called {}",
                scenario.name
            );
        }
    }
    assert!(names.len() >= 40, "{} scenarios", names.len());
}
