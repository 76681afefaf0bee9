//! The settings of a case: its own, and those of the command line for all.

use super::arguments::Arguments;
use super::case::Case;
use super::rounds::{Round, even};
use super::schedule::{MEMBERS_MAX, Schedule};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{ModelConfig, TrainerOptions, memory_estimate};
use starling_node::config::run_file::RunFile;
use starling_protocol::Digest;
use starling_protocol::run::{DataSpec, OuterSpec, SyncMode};
use std::path::Path;

/// A change of what a run computes raises this number. Rows of another number are not taken for results of this
/// program.
const NUMERICS: u32 = 1;
/// Weight decay of a case that names none.
const WEIGHT_DECAY: f64 = 0.01;

/// Everything that decides what a run of a case computes, but for its text and seed.
pub struct Setting {
    pub case: Case,
    pub model: ModelConfig,
    pub options: TrainerOptions,
    pub members: usize,
    /// Peak of the inner rate.
    pub lr: f64,
    pub outer: OuterSpec,
    pub rounds: Vec<Round>,
    /// Inner steps of a member that trains in all rounds.
    pub steps: usize,
    /// Points of the curve, beside that of the end.
    pub points: usize,
    /// The rounds in the words of a key.
    plan: String,
    preset: String,
}

impl Setting {
    /// # Errors
    /// If the settings do not go together.
    pub fn of(arguments: &Arguments, case: Case, schedule: Option<&Schedule>) -> Result<Self> {
        let base = ModelConfig::preset(&arguments.preset);
        let base = base.with_context(|| format!("--preset {}: there is no such preset", arguments.preset))?;
        let model = ModelConfig { vocab: 256, seq_len: arguments.seq, ..base };
        let available = std::thread::available_parallelism()?.get();
        let batch = case.batch.unwrap_or(arguments.batch);
        let options = TrainerOptions {
            batch,
            accumulate: 1,
            threads: if arguments.threads > 0 { arguments.threads } else { available },
            // With every step it is the mean gradient that an optimizer takes.
            rule: if case.mode == SyncMode::EveryStep { Rule::AdamW } else { case.inner },
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: case.weight_decay.unwrap_or(WEIGHT_DECAY),
            clip: 1.0,
        };
        let lr = case.lr.unwrap_or(arguments.lr);
        ensure!(lr.is_finite() && lr > 0.0, "--lr {lr}: must be a number above 0");
        let members = schedule.map_or(case.members.unwrap_or(arguments.members), |schedule| schedule.members);
        ensure!(members <= MEMBERS_MAX, "{case}: {members} members, at most {MEMBERS_MAX}: all train in this process");
        let (rounds, plan) = match schedule {
            Some(schedule) => (of_schedule(&case, schedule)?, format!("schedule {}", schedule.digest)),
            None => of_budget(arguments, &case, members, batch)?,
        };
        let outer = match case.outer {
            Some((rate, momentum)) => OuterSpec { lr: vec![(1, rate)], momentum },
            // Each fragment steps in its share of the rounds.
            None => default_outer(rounds.len().div_ceil(case.fragments as usize))?,
        };
        let steps = rounds.iter().map(|round| round.steps).sum();
        let (points, preset) = (arguments.points.max(1), arguments.preset.clone());
        Ok(Self { case, model, options, members, lr, outer, rounds, steps, points, plan, preset })
    }

    /// Tokens that all members train on.
    pub fn tokens(&self) -> u64 {
        let per_step = (self.options.batch * self.model.seq_len) as u64;
        self.rounds.iter().map(|round| (round.steps * round.who.len()) as u64 * per_step).sum()
    }

    /// Refuses a case whose members do not fit into so many bytes of memory.
    pub fn check_memory(&self, available: u64) -> Result<()> {
        let (estimate, inner) = (memory_estimate(&self.model, &self.options), self.case.inner);
        // A contribution and a residual.
        let of_a_member = estimate.total().saturating_add(2 * estimate.parameters);
        let (case, members, need) = (&self.case, self.members, of_a_member.saturating_mul(self.members as u64));
        let [need_mib, mib] = [need, available].map(|bytes| bytes >> 20);
        let why = "take fewer members, or a smaller batch or preset";
        ensure!(need <= available, "{case}: {members} members with inner={inner} take {need_mib} MiB of {mib}: {why}");
        Ok(())
    }

    /// The outer rate and momentum of a round with so many contributors.
    pub fn outer_for(&self, contributors: usize) -> (f32, f32) {
        (self.outer.lr_for(contributors) as f32, self.outer.momentum as f32)
    }

    /// Names everything that decides the result of a run but its seed: two runs with one key differ by chance alone.
    pub fn key(&self, text: &str) -> String {
        let Self { case, model, options, .. } = self;
        let outer = match case.mode {
            SyncMode::Rounds => format!("{:?} {}", self.outer.lr, self.outer.momentum),
            SyncMode::EveryStep => "none".to_owned(),
        };
        let gossip = case.gossip.map_or(0, |gossip| gossip.steps);
        // Rows from before there was such a case keep their keys.
        let moments = case.moments.map(|rounds| format!(" moments {rounds}")).unwrap_or_default();
        let parts = [
            format!("{} {} {}", case.codec, case.engine, case.mode),
            format!("fragments {} overlap {} mixing {} gossip {gossip}", case.fragments, case.overlap, case.mixing),
            format!("{} seq {} members {} batch {}", self.preset, model.seq_len, self.members, options.batch),
            format!("inner {} lr {} wd {}", case.inner, self.lr, options.weight_decay),
            format!("outer {outer} corrected {}{moments}", case.corrected.unwrap_or(0)),
            format!("{} tokens {} points {}", self.plan, self.tokens(), self.points),
            format!("null {} text {text} numerics {NUMERICS}", case.null),
        ];
        parts.join("; ")
    }

    /// The settings one by one, for whoever reads a row.
    pub fn json(&self) -> Value {
        let Self { case, options, .. } = self;
        json!({
            "codec": case.codec.to_string(), "engine": case.engine.name(), "mode": case.mode.name(),
            "fragments": case.fragments, "overlap": case.overlap, "mixing": case.mixing,
            "gossip": case.gossip.map(|gossip| gossip.steps), "preset": self.preset, "seq": self.model.seq_len,
            "members": self.members, "batch": options.batch, "inner": case.inner.name(), "lr": self.lr,
            "weight_decay": options.weight_decay, "outer_lr": self.outer.lr_for(self.members),
            "momentum": self.outer.momentum, "corrected": case.corrected, "plan": self.plan,
            "rounds": self.rounds.len(), "steps": self.steps, "tokens": self.tokens(), "threads": options.threads,
            "null": case.null,
        })
    }
}

/// Rounds with as many tokens as all cases have, and their name in a key.
fn of_budget(arguments: &Arguments, case: &Case, members: usize, batch: usize) -> Result<(Vec<Round>, String)> {
    let sequences = arguments.rounds * arguments.steps * arguments.members * arguments.batch;
    let (total, steps) = (sequences / (members * batch), case.steps.unwrap_or(arguments.steps));
    ensure!(total > 0, "{case}: {sequences} sequences are less than one step of all members");
    ensure!(case.overlap <= steps, "{case}: a round has {steps} steps only");
    let (lengths, plan) = match (case.grow, case.mode) {
        (_, SyncMode::EveryStep) => (vec![1; total], "every-step".to_owned()),
        (Some(growth), _) => (growth.lengths(total), format!("grow {growth}")),
        // Members work ahead of a round, so all rounds are equal.
        _ if case.streams() => (vec![steps; total / steps], format!("steps {steps}")),
        _ => (even(total, steps), format!("steps {steps}")),
    };
    ensure!(!lengths.is_empty(), "{case}: {total} steps are less than one round");
    Ok((lengths.into_iter().map(|steps| Round::of_all(steps, members)).collect(), plan))
}

/// The rounds of a lab's run, for cases that leave them as they are.
fn of_schedule(case: &Case, schedule: &Schedule) -> Result<Vec<Round>> {
    let told = [
        ("steps", case.steps.is_some()),
        ("grow", case.grow.is_some()),
        ("members", case.members.is_some()),
        ("batch", case.batch.is_some()),
        ("gossip", case.gossip.is_some()),
        ("fragments, overlap or mixing", case.streams()),
        ("every-step", case.mode == SyncMode::EveryStep),
    ];
    if let Some((word, _)) = told.iter().find(|(_, told)| *told) {
        bail!("{case}: --schedule says who trains how many steps: leave out {word}");
    }
    Ok(schedule.rounds.clone())
}

/// The outer rates and momentum that a run file without an `[outer]` gets for so many rounds.
fn default_outer(rounds: usize) -> Result<OuterSpec> {
    let text = format!("name = \"loss\"\n[budget]\nrounds = {rounds}\n");
    let data = || Digest::of("bench", &[]);
    let spec = RunFile::parse(&text, Path::new("loss"))
        .and_then(|file| file.spec(DataSpec { manifest: data(), tokenizer: data() }, 256));
    Ok(spec.map_err(|failure| failure.error)?.outer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn setting(words: &[&str], case: &str) -> Result<Setting> {
        let arguments = Arguments::parse_from([&["bench-loss"][..], words].concat());
        Setting::of(&arguments, case.parse().unwrap(), None)
    }

    const SMALL: &[&str] = &["--seq", "16", "--batch", "4", "--members", "4", "--steps", "10"];

    #[test]
    fn all_cases_have_the_same_tokens() {
        let plain = setting(SMALL, "bf16:ring").unwrap();
        assert_eq!((plain.rounds.len(), plain.steps, plain.tokens()), (60, 600, 600 * 4 * 4 * 16));
        for (case, rounds, steps) in [
            ("bf16:ring:steps=7", 86, 600),
            ("bf16:ring:members=1:batch=16", 60, 600),
            ("bf16:ring:members=2", 120, 1200),
            ("bf16:ring:batch=1", 240, 2400),
            ("bf16:ring:every-step", 600, 600),
        ] {
            let other = setting(SMALL, case).unwrap();
            assert_eq!((other.rounds.len(), other.steps, other.tokens()), (rounds, steps, plain.tokens()), "{case}");
        }
        let growing = setting(SMALL, "bf16:ring:grow=1..30").unwrap();
        assert_eq!((growing.tokens(), growing.rounds[0].steps), (plain.tokens(), 1));
    }

    #[test]
    fn outer_settings_are_those_of_run_files() {
        let of = |rounds: &str| {
            let words = [SMALL, &["--rounds", rounds][..]].concat();
            setting(&words, "bf16:ring").unwrap().outer_for(4)
        };
        let defaults: Vec<_> = ["100", "300", "1000"].map(of).to_vec();
        assert_eq!(defaults.len(), 3);
        assert!(defaults.windows(2).all(|pair| pair[0].1 <= pair[1].1), "momentum needs rounds: {defaults:?}");
        assert_eq!(setting(SMALL, "bf16:ring:outer=1.5,0.25").unwrap().outer_for(4), (1.5, 0.25));
    }

    #[test]
    fn a_key_tells_apart_what_computes_something_else() {
        let key = |case: &str| setting(SMALL, case).unwrap().key("0123");
        let cases = [
            "bf16:ring",
            "bf16:owners",
            "int8:ring",
            "bf16:ring:lr=1e-3",
            "bf16:ring:wd=0.1",
            "bf16:ring:outer=1,0.5",
            "bf16:ring:corrected=28",
            "bf16:ring:inner=lion",
            "bf16:ring:batch=2",
            "bf16:ring:members=2",
            "bf16:ring:steps=5",
            "bf16:ring:grow=1..10",
            "bf16:ring:null",
            "bf16:ring:every-step",
            "bf16:ring:gossip=3",
            "bf16:ring:overlap=2",
        ];
        let keys: std::collections::BTreeSet<String> = cases.iter().map(|case| key(case)).collect();
        assert_eq!(keys.len(), cases.len());
        assert_eq!(key("bf16:ring:lr=0.004:steps=10"), key("bf16:ring"), "a default that is written out");
        assert_ne!(setting(SMALL, "bf16:ring").unwrap().key("4567"), key("bf16:ring"));
        let longer = [SMALL, &["--rounds", "61"][..]].concat();
        assert_ne!(setting(&longer, "bf16:ring").unwrap().key("0123"), key("bf16:ring"));
    }

    #[test]
    fn settings_that_do_not_fit_are_refused() {
        let refused = |words: &[&str], case: &str| match setting(&[SMALL, words].concat(), case) {
            Ok(_) => panic!("{words:?} {case} is taken"),
            Err(error) => format!("{error:#}"),
        };
        assert!(refused(&["--preset", "7b"], "bf16:ring").contains("--preset 7b"));
        assert!(refused(&["--lr", "0"], "bf16:ring").contains("--lr 0"));
        assert!(refused(&["--lr", "NaN"], "bf16:ring").contains("--lr NaN"));
        assert!(refused(&[], "bf16:ring:members=65").contains("at most 64"));
        assert!(refused(&[], "bf16:ring:overlap=11").contains("10 steps only"));
        assert!(refused(&[], "bf16:ring:batch=100000").contains("less than one step"));
    }

    #[test]
    fn members_that_do_not_fit_into_memory_are_refused() {
        let muon = setting(SMALL, "bf16:ring:inner=muon").unwrap();
        let refused = muon.check_memory(1 << 20).unwrap_err().to_string();
        assert!(refused.contains("4 members with inner=muon take") && refused.contains("MiB of 1"), "{refused}");
        muon.check_memory(1 << 30).unwrap();
        let need = |case: &str| {
            let setting = setting(SMALL, case).unwrap();
            (0..40).find(|power| setting.check_memory(1u64 << *power).is_ok())
        };
        assert!(need("bf16:ring") < need("bf16:ring:members=16"));
    }

    #[test]
    fn a_schedule_has_the_last_word_on_rounds() {
        let rounds = vec![Round { steps: 5, who: vec![0, 2], seconds: Some(1.0) }, Round::of_all(7, 3)];
        let schedule = Schedule { rounds: rounds.clone(), members: 3, digest: "abc".to_owned() };
        let arguments = Arguments::parse_from([&["bench-loss"][..], SMALL].concat());
        let of = |case: &str| Setting::of(&arguments, case.parse().unwrap(), Some(&schedule));
        let setting = of("bf16:ring:lr=1e-3").unwrap();
        assert_eq!((setting.members, setting.steps, setting.tokens()), (3, 12, (5 * 2 + 7 * 3) * 4 * 16));
        assert_eq!(setting.rounds, rounds);
        assert!(setting.key("0").contains("schedule abc"));
        for word in ["steps=3", "grow=1..3", "members=2", "batch=2", "every-step", "overlap=1", "gossip=2"] {
            let Err(error) = of(&format!("bf16:ring:{word}")) else { panic!("{word} is taken") };
            assert!(error.to_string().contains("--schedule says"), "{error}");
        }
    }
}
