use super::*;
use crate::config::run_file::RunFile;
use starling_protocol::Digest;
use starling_protocol::amendment::{Amendment, Changes, Settings};
use starling_protocol::run::DataSpec;

const MIB: u64 = 1 << 20;

/// The specification of a run file with these tables.
fn spec(tables: &str) -> RunSpec {
    let file: RunFile = toml::from_str(&format!("name = \"sized\"\n{tables}")).expect("it parses");
    let data = DataSpec { manifest: Digest::of("test", &[]), tokenizer: Digest::of("test", &[]) };
    file.spec(data, 256).expect("it is sound")
}

/// The parameters of a run, and its need with snapshots at every 16th record.
fn need(tables: &str) -> (u64, DiskNeed) {
    let spec = spec(tables);
    (spec.model.parameters(), DiskNeed::of(&spec, 16, true))
}

fn bounded(max_gib: f64) -> NodeFile {
    NodeFile { store: StoreTable { max_gib }, ..NodeFile::default() }
}

#[test]
fn a_run_that_was_lengthened_takes_more() {
    let spec = spec("[model]\npreset = \"10m\"\n[budget]\nrounds = 4");
    let changes = Changes { rounds: Some(40), ..Changes::default() };
    let settings = Settings::default().after(&Amendment::next(&Settings::default(), 0, changes), &Digest([1; 32]));
    let [before, after] = [&spec, &settings.in_force(&spec)].map(|spec| DiskNeed::of(spec, 16, true));
    assert_eq!((before.rounds, after.rounds), (4, 16));
    assert!(after.least() > before.least());
}

#[test]
fn known_models_take_what_their_vectors_and_updates_take() {
    for (preset, least, most) in [("10m", 9e6, 12e6), ("30m", 27e6, 36e6), ("1b", 0.9e9, 1.2e9)] {
        let (p, need) = need(&format!("[model]\npreset = \"{preset}\"\n[sync]\ncodec = \"int8\""));
        assert!((least..most).contains(&(p as f64)), "{preset} has {p}");
        assert_eq!((need.state, need.moments, need.residual, need.rounds), (8 * p, 8 * p, 0, 16), "{preset}");
        // A byte for each parameter, and two for each block of 256.
        assert_eq!(need.update, p + 2 * p.div_ceil(256), "{preset}");
        let beside = 16 * MIB;
        assert_eq!(need.least(), 3 * 8 * p + 18 * need.update + beside, "{preset}");
        // Four snapshots and five checkpoints, old and new moments, and two vectors of lineages that parted.
        assert_eq!(need.most(), (72 + 16 + 8) * p + 37 * need.update + 2 * beside, "{preset}");
    }
}

#[test]
fn mode_codec_fragments_and_budget_make_a_difference() {
    let (p, every_step) = need("sync = \"every-step\"\n[model]\npreset = \"10m\"");
    assert_eq!((every_step.state, every_step.update, every_step.moments), (12 * p, 2 * p, 0));
    let (p, int4) = need("[model]\npreset = \"10m\"\n[sync]\ncodec = \"int4\"");
    assert_eq!(int4.residual, 4 * p);
    let (p, chosen) = need("[model]\npreset = \"10m\"");
    assert_eq!(chosen.residual, 4 * p, "the flock may choose int4");
    assert!((p / 2..p * 2 / 3).contains(&int4.update), "{} of {p}", int4.update);
    let (p, fragments) = need("[model]\npreset = \"10m\"\n[sync]\nfragments = 4");
    assert!((p / 4..p / 3).contains(&fragments.update), "{} of {p}", fragments.update);
    let null = DiskNeed::of(&spec("[model]\npreset = \"10m\""), 16, false);
    assert_eq!((null.moments, null.state), (0, 8 * p));

    let rounds = |tables: &str, every| DiskNeed::of(&spec(tables), every, true).rounds;
    assert_eq!(rounds("", 1_000_000), 1_000_000);
    assert_eq!(rounds("[budget]\nrounds = 40", 1_000_000), 40, "a run has no more updates than rounds");
    // A round of one member: 30 steps of 8 sequences of 128 tokens.
    assert_eq!(rounds("[inner]\nsteps = 30\n[budget]\ntokens = 61441", 1_000_000), 3);
    assert_eq!(rounds("[budget]\ntokens = 61441", 1_000_000), 61, "the flock may choose a single step");
    assert_eq!(rounds("[budget]\nrounds = 40", 0), 1);
    assert_eq!(DiskNeed::of(&spec(""), u64::MAX, true).least(), u64::MAX, "and no overflow");
}

#[test]
fn a_bound_that_is_too_small_is_refused_with_the_one_that_is_not() {
    let (_, need) = need("[model]\npreset = \"1b\"");
    let home = Path::new("/srv/node");
    let refused = need.judge(&bounded(1.0), home, u64::MAX).expect_err("a state alone is larger");
    assert_eq!(refused.code, Code::Usage);
    let (needed, said) = (need.least() + 16 * MIB, refused.error.to_string());
    let setting = StoreTable::gib_for(needed);
    let words = ["store.max_gib = 1 ", "1073741824 bytes", "/srv/node", "snapshot_every below 16"].map(str::to_owned);
    for words in words.into_iter().chain([format!("{needed} bytes"), format!("store.max_gib to {setting}")]) {
        assert!(said.contains(&words), "`{words}` is missing in: {said}");
    }
    let warning = need.judge(&bounded(setting), home, u64::MAX).expect("the setting that it names will do");
    assert_eq!(warning, None);
}

#[test]
fn a_disk_that_is_too_small_is_refused_and_one_that_may_fill_up_is_warned_of() {
    let (_, need) = need("[model]\npreset = \"30m\"");
    let home = Path::new("/srv/node");
    let refused = need.judge(&NodeFile::default(), home, need.least() - 1).expect_err("too small");
    assert_eq!(refused.code, Code::DiskFull);
    let said = refused.error.to_string();
    let (needed, there) = (need.least().to_string(), (need.least() - 1).to_string());
    for words in ["bytes are needed", "/srv/node", "--home", "snapshot_every", &needed, &there] {
        assert!(said.contains(words), "`{words}` is missing in: {said}");
    }
    let warned = |node: &NodeFile, there| need.judge(node, home, there).expect("it works");
    let warning = warned(&NodeFile::default(), need.least()).expect("without a bound it fills up");
    assert!(warning.contains("store.max_gib") && warning.contains(&need.most().to_string()), "{warning}");
    assert_eq!(warned(&NodeFile::default(), need.most()), None);
    let least = StoreTable::gib_for(need.least() + 16 * MIB);
    assert_eq!(warned(&bounded(least), bounded(least).store.max_bytes()), None, "the bound fits on the disk");
}

#[test]
fn what_a_start_prints_is_bounded_by_the_setting() {
    let dir = tempfile::tempdir().expect("a folder");
    let spec = spec("[model]\npreset = \"0.1m\"");
    let most = |node: &NodeFile| check(&spec, node, dir.path(), true).expect("there is room");
    let unbounded = DiskNeed::of(&spec, 16, true).most();
    assert_eq!(most(&NodeFile::default()), unbounded);
    assert_eq!(most(&bounded(1000.0)), unbounded);
    assert!((49 * MIB..50 * MIB).contains(&unbounded), "{unbounded}");
    let mut keeps_ten = NodeFile::default();
    keeps_ten.checkpoint.keep = 10;
    assert_eq!(most(&keeps_ten), unbounded + 8 * DiskNeed::of(&spec, 16, true).state);
    assert_eq!(most(&bounded(0.04)), bounded(0.04).store.max_bytes());
    assert!(check(&spec, &bounded(0.01), dir.path(), true).is_err());
}
