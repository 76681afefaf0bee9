use super::*;
use crate::stage::Entry;

fn scenario() -> Scenario {
    let text =
        "end_s = 1\n[[nodes]]\nname = \"a\"\n[[nodes]]\nname = \"s\"\nprogram = \"starling-stranger\"\nlater = true\n";
    Scenario::parse(text, Path::new("injected.toml")).expect("a scenario")
}

#[test]
fn the_largest_of_the_honest_counts() {
    let entry =
        |text: &str| Entry { seen: 1.0, what: What::Sizes, node: None, fault: None, text: text.into(), code: None };
    let rows = [
        "[{\"node\": \"a\", \"rss_kib\": 2049}, {\"node\": \"s\", \"rss_kib\": 900000}]",
        "[{\"node\": \"a\", \"rss_kib\": 5}]",
    ];
    let history = History { diary: rows.map(entry).into(), ..History::default() };
    let check = |most| size(&scenario(), &history, "rss_kib", ("memory", 1024), most);
    assert!(check(3).ok, "{}", check(3).detail);
    assert!(!check(2).ok, "2049 KiB are more than two MiB");
    assert!(!size(&scenario(), &History::default(), "rss_kib", ("memory", 1024), 9).ok, "nothing seen proves nothing");
}

#[test]
fn counters_are_added_up_by_name_and_label() {
    let logs = tempfile::tempdir().expect("a folder");
    let text = "# TYPE refused counter\nrefused{reason=\"x\"} 3\nrefused{reason=\"y\"} 4\nrefused_more 100\n";
    std::fs::write(logs.path().join("a.metrics"), text).expect("write");
    let ask = |with: Option<&str>, node: Option<&str>, least| {
        let (with, node) = (with.map(String::from), node.map(String::from));
        counted(&scenario(), logs.path(), &Counted { metric: "refused".into(), with, node, least }).ok
    };
    assert!(ask(None, None, 7.0) && !ask(None, None, 7.5));
    assert!(ask(Some("\"y\""), Some("a"), 4.0) && !ask(Some("\"y\""), Some("a"), 5.0));
    assert!(!ask(None, Some("s"), 0.0), "who says nothing has counted nothing");
}
