use super::system::PROGRAMS;
use super::*;
use serde_json::json;

#[test]
fn events_of_each_system_say_the_same_things() {
    let said = |system: System, event: serde_json::Value| system.said(&event);
    let (ours, ddp, hivemind) = (System::Starling, System::Ddp, System::Hivemind);
    let committed = json!({"event": "committed", "contributors": ["a", "b", "c"], "round": 4});
    assert_eq!(said(ours, committed.clone()), Some(Said::Averaged { members: 3, steps: None }));
    assert_eq!(said(ddp, committed), None, "nobody else says that");
    let phase = |phase: &str| said(ours, json!({"event": "phase", "phase": phase}));
    assert_eq!(phase("training"), Some(Said::Began { plain_seconds: None, version: None }));
    assert_eq!(phase("ready"), None);
    let trained = json!({"event": "trained", "tokens": 512, "seconds": 0.5});
    assert_eq!(said(ours, trained), Some(Said::Trained { tokens: 512, seconds: 0.5 }));
    let validated = json!({"event": "validated", "nats_per_byte": 2.5});
    for system in [ours, ddp, hivemind] {
        assert_eq!(said(system, validated.clone()), Some(Said::Validated(2.5)));
    }
    let began = json!({"event": "began", "plain_seconds": 0.01, "version": "2.0"});
    let expected = Said::Began { plain_seconds: Some(0.01), version: Some("2.0".into()) };
    assert_eq!(said(hivemind, began), Some(expected));
    let stepped = json!({"event": "stepped", "members": 4, "steps": 7});
    assert_eq!(said(ddp, stepped), Some(Said::Averaged { members: 4, steps: Some(7) }));
    let loaded = said(hivemind, json!({"event": "loaded", "steps": 3}));
    assert_eq!(loaded, Some(Said::Trouble("took another peer's state".into())));
    for odd in [json!({"event": "stepped"}), json!({"event": 4}), json!([]), json!({"event": "listening"})] {
        assert_eq!(said(hivemind, odd.clone()), None, "{odd}");
    }
}

#[test]
fn a_python_without_it_is_told_of() {
    let why = format!("{:#}", System::Ddp.have("/nowhere/python").unwrap_err());
    assert!(why.contains("/nowhere/python"), "{why}");
    assert!(System::Starling.have("/nowhere/python").is_ok());
}

/// The folder of the rivals holds only `PROGRAMS`.
#[test]
fn every_module_of_ours_that_a_program_imports_is_written_beside_it() {
    let rivals = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches");
    let ours =
        |module: &str| ["rivals", "pytorch"].iter().any(|at| rivals.join(at).join(format!("{module}.py")).exists());
    let mut found = 0;
    for (name, text) in PROGRAMS {
        let lines = text.lines().filter_map(|l| l.strip_prefix("from ").or(l.strip_prefix("import ")));
        for module in lines.filter_map(|l| l.split([' ', ',', '.']).next()).filter(|module| ours(module)) {
            found += 1;
            assert!(PROGRAMS.iter().any(|(other, _)| *other == format!("{module}.py")), "{name} imports {module}");
        }
    }
    assert!(found >= 4, "{found} imports of our own were found");
}

#[test]
fn the_smaller_of_two_shards_is_held_out() {
    let cache = tempfile::tempdir().unwrap();
    assert!(texts(cache.path()).is_err());
    let shards = cache.path().join("shards");
    std::fs::create_dir(&shards).unwrap();
    for (name, size) in [("aa", 500), ("bb", 20)] {
        std::fs::write(shards.join(name), vec![1; size]).unwrap();
    }
    let [train, held_out] = texts(cache.path()).unwrap();
    assert!(train.ends_with("aa") && held_out.ends_with("bb"));
    std::fs::write(shards.join("cc"), [1]).unwrap();
    assert!(format!("{:#}", texts(cache.path()).unwrap_err()).contains("3 shards"));
}
