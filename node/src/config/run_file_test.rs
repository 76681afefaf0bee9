use super::*;
use crate::config::node_file::NodeFile;
use starling_protocol::run::{Codec, EngineKind};

/// The message of a reader of a file with this text; the path is `FILE`.
fn refusal<T>(load: fn(&Path) -> Result<T, Failure>, text: &str) -> String {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("file.toml");
    std::fs::write(&path, text).expect("written");
    let failure = load(&path).err().unwrap_or_else(|| panic!("it is taken: {text}"));
    assert_eq!(failure.code, Code::Usage, "{text}");
    failure.error.to_string().replace(&path.display().to_string(), "FILE")
}

#[test]
fn a_wrong_run_file_is_answered_with_its_line_its_key_and_what_to_write() {
    let whole = "give a whole number from 0 to 4294967295";
    let rows = [
        (
            "[model]\npreset = \"1m\"\n",
            "the key `name` is missing; write `name = \"my-run\"`, with a name of your own, above all tables: 1 to 64 \
             of a-z, 0-9 and -"
                .to_owned(),
        ),
        ("name = 7\n", "line 1: name is the number 7: give a text in quotes".to_owned()),
        ("name = \"a\"\n[inner]\nbatch = \"four\"\n", format!("line 3: inner.batch is the text \"four\": {whole}")),
        ("name = \"a\"\n[inner]\nsteps = -3\n", format!("line 3: inner.steps is the number -3: {whole}")),
        ("name = \"a\"\n\n[inner]\nlr = true\n", "line 4: inner.lr is true: give a number".to_owned()),
        ("name = \"a\"\nmodel = \"1m\"\n", "line 2: model is the text \"1m\": give a table".to_owned()),
        (
            "name = \"a\"\n[data]\nsources = \"text.txt\"\n",
            "line 3: data.sources is the text \"text.txt\": give a list in brackets".to_owned(),
        ),
        (
            "name = \"a\"\n[sync]\ngossip = { steps = \"many\" }\n",
            format!("line 3: sync.gossip.steps is the text \"many\": {whole}"),
        ),
        (
            "name = \"a\"\nsync = 7\n",
            "line 2: sync is the number 7: give a mode such as \"every-step\", or a table".to_owned(),
        ),
        (
            "name = \"a\"\n[outer]\nlr = \"high\"\n",
            "line 3: outer.lr: give one rate, such as 0.7, or a list of contributors and rates, such as [[1, 0.4], [2, \
             0.6]]"
                .to_owned(),
        ),
        (
            "name = \"a\"\n[partition]\nminority = \"wayt\"\n",
            "line 3: partition.minority = \"wayt\" is not known: did you mean \"wait\"?".to_owned(),
        ),
        (
            "name = \"a\"\n[admission]\nmode = 1\n",
            "line 3: admission.mode is no text: give a text in quotes".to_owned(),
        ),
        ("name = \"a\"\n[inner]\nstesp = 3\n", "unknown key `stesp` at line 3; did you mean `steps`?".to_owned()),
    ];
    for (text, message) in rows {
        assert_eq!(refusal(RunFile::load, text), format!("FILE: {message}"), "{text}");
    }
    let twice = refusal(RunFile::load, "name = \"a\"\nname = \"b\"\n");
    assert!(twice.starts_with("FILE: line 2: ") && twice.contains("duplicate key"), "{twice}");
}

#[test]
fn a_wrong_node_file_is_answered_in_the_same_way() {
    let rows = [
        ("threads = \"all\"\n", "line 1: threads is the text \"all\": give a whole number of 0 or more"),
        ("mdns = 1\n", "line 1: mdns is the number 1: give true or false"),
        ("listen = \"/ip4/1/\"\n", "line 1: listen is the text \"/ip4/1/\": give a list in brackets"),
        ("home = 3\n", "line 1: home is the number 3: give a text in quotes"),
        ("[store]\nmax_gib = \"20\"\n", "line 2: store.max_gib is the text \"20\": give a number"),
        ("[store]\nmax_gb = 20\n", "unknown key `max_gb` at line 2; did you mean `max_gib`?"),
        ("store = 20\n", "line 1: store is the number 20: give a table"),
        ("max_gib = 20\n", "unknown key `max_gib` at line 1; known here: "),
    ];
    for (text, message) in rows {
        let said = refusal(NodeFile::load, text);
        assert!(said.starts_with(&format!("FILE: {message}")), "{text}: {said}");
    }
}

/// The specification has milliseconds, and nobody has written any.
#[test]
fn values_out_of_range_are_named_by_the_keys_of_the_file() {
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    let said = |tables: &str| {
        let file: RunFile = toml::from_str(&format!("name = \"a\"\n{tables}")).expect("it parses");
        file.spec(data(), 256).expect_err("out of range").error.to_string()
    };
    let both = said("[join]\npatience_s = 9999\nshare = 70\n[partition]\ngrace_s = 0\n");
    for words in [
        "join.patience_s = 9999: must be between 0 and 3600",
        "join.share = 70: must be between 0 and 50",
        "partition.grace_s = 0: must be between 1 and 86400",
    ] {
        assert!(both.contains(words), "`{words}` is missing in: {both}");
    }
    assert!(!both.contains("_ms"), "{both}");
    assert!(said("[join]\npatience_s = 4294967295").contains("join.patience_s = 4294967295: give at most an hour"));
}

#[test]
fn momentum_follows_from_the_rounds_that_the_budget_has() {
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    let momentum = |tables: &str| {
        let file: RunFile = toml::from_str(&format!("name = \"a\"\n{tables}")).expect("it parses");
        file.spec(data(), 256).expect("a run").outer.momentum
    };
    // A round of four nodes has 4 x 10 x 8 x 128 tokens.
    let with = |budget: &str| {
        momentum(&format!("[model]\nseq_len = 128\n[inner]\noptimizer = \"adamw\"\nsteps = 10\n[budget]\n{budget}"))
    };
    assert_eq!(with("rounds = 0"), 0.9);
    assert_eq!([with("rounds = 199"), with("rounds = 200"), with("rounds = 500")], [0.3, 0.6, 0.9]);
    assert_eq!([199, 200, 500].map(|rounds| with(&format!("tokens = {}", rounds * 40_960))), [0.3, 0.6, 0.9]);
    assert_eq!(with("rounds = 1000\ntokens = 40960"), 0.3, "the end that comes first");
    let fragments = "[inner]\noptimizer = \"lion\"\nsteps = 10\n[budget]\nrounds = 500\n[sync]\nfragments = 2\n";
    assert_eq!(
        momentum(&format!("[model]\npreset = \"1m\"\n{fragments}")),
        0.6,
        "a fragment steps in every other round"
    );
}

#[test]
fn each_inner_optimizer_has_its_name_in_run_files_and_trainers() {
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    for optimizer in Optimizer::ALL {
        let file: RunFile =
            toml::from_str(&format!("name = \"a\"\n[inner]\noptimizer = \"{optimizer}\"\n")).expect("it parses");
        let spec = file.spec(data(), 256).expect("a run");
        assert_eq!((spec.inner.optimizer, trainer_options(&spec.inner, 1).rule.name()), (*optimizer, optimizer.name()));
    }
}

#[test]
fn a_run_file_that_names_no_optimizer_trains_with_muon_where_it_may() {
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    let of = |text: &str| {
        let file: RunFile = toml::from_str(&format!("name = \"a\"\n{text}")).expect("it parses");
        let spec = file.spec(data(), 256).expect("a run");
        (spec.inner.optimizer, spec.inner.lr, spec.outer.lr, spec.outer.momentum)
    };
    let plain = |lr| (Optimizer::Muon, lr, vec![(1, 1.0)], 0.0);
    assert_eq!([of("[model]\npreset = \"1m\"\n"), of("[budget]\nrounds = 300\n")], [plain(8e-3), plain(8e-3)]);
    let preset = |name: &str| of(&format!("[model]\npreset = \"{name}\"\n")).1;
    assert_eq!(["0.1m", "3m", "30m", "125m", "1b"].map(preset), [1.1e-2, 5.7e-3, 4e-3, 3.3e-3, 2e-3]);
    assert_eq!(of("[inner]\nlr = 1e-3\n"), plain(1e-3), "a rate that is named stays");
    let first = |text: &str| (of(text).0, of(text).1);
    assert_eq!(first("[sync]\nmode = \"every-step\"\n"), (Optimizer::AdamW, 2e-3));
    assert_eq!(first("[inner]\noptimizer = \"adamw\"\n"), (Optimizer::AdamW, 2e-3));
    assert_eq!(first("[inner]\noptimizer = \"lion\"\n"), (Optimizer::Lion, 2e-4));
}

#[test]
fn the_flock_chooses_its_steps_where_it_may_and_nobody_has() {
    let data = || DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    let of = |text: &str| {
        let file: RunFile = toml::from_str(&format!("name = \"a\"\n{text}")).expect("it parses");
        file.spec(data(), 256).map(|spec| (spec.inner.steps, spec.sync.gap_max)).map_err(|why| why.error.to_string())
    };
    for text in ["", "[budget]\ntokens = 1000000\n", "[sync]\ncodec = \"int4\"\n", "[sync]\nadapt = true\n"] {
        assert_eq!(of(text), Ok((30, 512)), "{text}");
    }
    let chosen = [
        "[inner]\nsteps = 30\n",
        "[budget]\nrounds = 40\n",
        "[sync]\nadapt = false\n",
        "[inner]\noptimizer = \"adamw\"\n",
        "[outer]\nmomentum = 0.5\n",
        "[sync]\nengine = \"gossip\"\n",
        "[sync]\ncodec = \"top-k\"\n",
    ];
    for text in chosen {
        assert_eq!(of(text), Ok((30, 0)), "{text}");
    }
    assert_eq!(of("[sync]\nmode = \"every-step\"\n"), Ok((1, 0)));
    // A file that says so lets it choose all the same, from the steps that are named.
    assert_eq!(of("[inner]\nsteps = 10\n[sync]\nadapt = true\n"), Ok((10, 512)));
    assert_eq!(of("[inner]\nsteps = 1000\n[sync]\nadapt = true\n"), Ok((1000, 1000)));
    assert_eq!(of("[budget]\nrounds = 40\n[sync]\ngap_max = 64\n"), Ok((30, 64)));
    let coarsest = |text: &str| {
        let file: RunFile = toml::from_str(&format!("name = \"a\"\n{text}")).expect("it parses");
        let sync = file.spec(data(), 256).expect(text).sync;
        (sync.codec, sync.engine, sync.coarsest)
    };
    let (int8, int4, ring, owners) = (Codec::Int8, Codec::Int4, EngineKind::Ring, EngineKind::Owners);
    assert_eq!(coarsest(""), (int8, ring, Some(int4)));
    assert_eq!(coarsest("[sync]\ncodec = \"auto\"\nengine = \"auto\"\n"), (int8, ring, Some(int4)));
    assert_eq!(coarsest("[sync]\nengine = \"owners\"\n"), (int8, owners, Some(int4)));
    assert_eq!(coarsest("[sync]\nengine = \"ring\"\n"), (int8, ring, None), "int4 does not go around a ring");
    assert_eq!(coarsest("[sync]\ncodec = \"int8\"\n"), (int8, ring, None), "it is named");
    assert_eq!(coarsest("[inner]\nsteps = 30\n"), (int8, ring, None), "nothing is chosen");
    let refused = |text: &str| of(text).expect_err(text);
    assert!(refused("[sync]\nadapt = false\ngap_max = 64\n").contains("sync.gap_max = 64 means nothing"));
    assert!(refused("[sync]\ngap_max = 0\n").contains("sync.adapt = false"));
    assert!(refused("[inner]\nsteps = 10\n[sync]\ngap_max = 9\n").contains("between inner.steps (10) and 1048576"));
    assert!(
        refused("[sync]\nadapt = true\nmode = \"every-step\"\n")
            .contains("sync.adapt = true: must be left out, or false, with sync.mode")
    );
    assert!(refused("[sync]\nadapt = true\ncodec = \"top-k\"\n").contains("with sync.codec = \"top-k\""));
    assert!(refused("[sync]\nadapt = true\n[outer]\nmomentum = 0.6\n").contains("outer.momentum above 0.3"));
}
