//! Bounds of a run's values, each with its reason.

use super::{AdmissionMode, Codec, DataSpec, EngineKind, ModelSpec, Optimizer, OuterSpec, RunSpec, SyncMode, SyncSpec};
use crate::Digest;
use crate::codec::topk::TOPK_BLOCK;
use crate::control::MOMENTUM_MAX;
use crate::gossip::{ALPHA_MAX, GAMMA_MAX, GossipSpec};
use crate::limits::{
    ALLOWED_MAX, CHUNK_ELEMENTS, FRAGMENTS_MAX, INNER_STEPS_MAX, JOIN_PATIENCE_MAX, JOIN_SHARE_MAX, LEASE_SAMPLES_MAX,
    MEMBERS_MAX, OUTER_LR_ENTRIES_MAX, OVERLAP_MAX, PARAMETERS_MAX, PROBATION_MAX, RUN_NAME_CHARS_MAX, SAMPLES_MAX,
    TASK_SAMPLES_MAX, TOPK_K_MAX, TOPK_TURNS_MIN,
};
use std::fmt;

/// A value that a run may not have.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Key in dotted form, as in the run file.
    pub key: &'static str,
    pub value: String,
    /// The requirement, with a reason where that is not plain.
    pub must: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}: must be {}", self.key, self.value, self.must)
    }
}

/// All problems of a run's specification; never empty.
#[derive(Clone, Debug, PartialEq)]
pub struct RunError {
    pub problems: Vec<Problem>,
}

impl fmt::Display for RunError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.problems.iter().enumerate() {
            if index > 0 {
                f.write_str("; ")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for RunError {}

impl RunSpec {
    /// Checks every value; all problems are listed, so that a user mends a file once.
    pub fn validate(&self) -> Result<(), RunError> {
        let mut check = Check { problems: Vec::new() };
        self.check_name(&mut check);
        self.check_model(&mut check);
        self.check_task(&mut check);
        self.check_inner(&mut check);
        self.check_outer(&mut check);
        self.check_sync(&mut check);
        self.check_flock(&mut check);
        if check.problems.is_empty() { Ok(()) } else { Err(RunError { problems: check.problems }) }
    }

    fn check_name(&self, check: &mut Check) {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        let good = (1..=RUN_NAME_CHARS_MAX).contains(&self.name.len()) && self.name.chars().all(plain);
        // A peer may have sent any value: it is escaped and cut before it is shown.
        let shown: String = self.name.chars().take(RUN_NAME_CHARS_MAX).flat_map(char::escape_default).collect();
        let must = format!("1 to {RUN_NAME_CHARS_MAX} of a-z, 0-9 and -");
        check.holds(good, "name", shown, must);
    }

    fn check_model(&self, check: &mut Check) {
        let m = &self.model;
        check.range("model.vocab", m.vocab, 2, 1 << 24);
        check.range("model.d_model", m.d_model, 2, 1 << 16);
        check.range("model.layers", m.layers, 1, 1 << 10);
        check.range("model.heads", m.heads, 1, 1 << 10);
        check.range("model.kv_heads", m.kv_heads, 1, m.heads.max(1));
        check.range("model.ffn", m.ffn, 1, 1 << 18);
        check.range("model.seq_len", m.seq_len, 1, 1 << 20);
        check.float("model.rope_theta", m.rope_theta, Least::From(1.0), Most::To(1e12));
        check.float("model.norm_eps", m.norm_eps, Least::Above(0.0), Most::To(0.1));
        if m.heads > 0 {
            let even = m.d_model.is_multiple_of(m.heads) && (m.d_model / m.heads).is_multiple_of(2);
            let must = format!("a multiple of twice model.heads ({}): rotary embedding turns pairs", m.heads);
            check.holds(even, "model.d_model", m.d_model, must);
        }
        if m.kv_heads > 0 {
            let must = format!("a divisor of model.heads ({})", m.heads);
            check.holds(m.heads.is_multiple_of(m.kv_heads), "model.kv_heads", m.kv_heads, must);
        }
        let parameters = m.parameters();
        let must = format!("a model of at most {PARAMETERS_MAX} parameters");
        check.holds(parameters <= PARAMETERS_MAX, "model", format!("{parameters} parameters"), must);
        let named = self.beginning != Some(Digest::default());
        check.holds(named, "model.beginning", "zero", "the root of a state, or left out".to_owned());
    }

    fn check_task(&self, check: &mut Check) {
        let Some(task) = &self.task else { return };
        let must = "left out with task.kind = \"external\": the trainers bring the model";
        check.holds(self.model == ModelSpec::of_external(), "model", "set", must.to_owned());
        let must = "left out with task.kind = \"external\": the trainers turn data into numbers";
        let tokenizer = DataSpec::of_external().tokenizer;
        check.holds(self.data.tokenizer == tokenizer, "data.tokenizer", "set", must.to_owned());
        let must = "set with task.kind = \"external\": the founder's trainer gives the first parameters";
        check.holds(self.beginning.is_some(), "model.beginning", "none", must.to_owned());
        let must = "the digest of a schema".to_owned();
        check.holds(task.schema != Digest::default(), "task.schema", "zero", must);
        let range = |value: u64, least: u64, most: u64| (least..=most).contains(&value);
        let must = format!("between 1 and {PARAMETERS_MAX}");
        check.holds(range(task.parameters, 1, PARAMETERS_MAX), "task.parameters", task.parameters, must);
        let must = format!("between 1 and task.parameters ({})", task.parameters);
        check.holds(range(task.learned, 1, task.parameters), "task.learned", task.learned, must);
        let must = format!("between 0 (each node has data of its own) and {TASK_SAMPLES_MAX}");
        check.holds(range(task.samples, 0, TASK_SAMPLES_MAX), "task.samples", task.samples, must);
        check.range("task.weight", task.weight, 1, u32::MAX);
        let must = "\"rounds\" with task.kind = \"external\": a trainer has an optimizer of its own, and every-step \
                    averages gradients for one that all share";
        check.holds(self.sync.mode == SyncMode::Rounds, "sync.mode", self.sync.mode, must.to_owned());
        let samples = self.inner.samples(self.inner.steps);
        let must = format!("at most {LEASE_SAMPLES_MAX} (steps x batch x accumulate) with an external task");
        check.holds(samples <= LEASE_SAMPLES_MAX, "inner.steps", format!("{samples} samples a round"), must);
        let must = "left out with task.kind = \"external\": a trainer has an optimizer of its own".to_owned();
        check.holds(self.inner.optimizer == Optimizer::AdamW, "inner.optimizer", self.inner.optimizer, must);
    }

    fn check_inner(&self, check: &mut Check) {
        let i = &self.inner;
        check.range("inner.steps", i.steps, 1, INNER_STEPS_MAX);
        check.range("inner.batch", i.batch, 1, 1 << 16);
        check.range("inner.accumulate", i.accumulate, 1, 1 << 16);
        let samples = i.samples(i.steps);
        let must = format!("at most {SAMPLES_MAX} sequences a round (steps x batch x accumulate)");
        check.holds(samples <= SAMPLES_MAX, "inner.steps", format!("{samples} sequences"), must);
        check.float("inner.lr", i.lr, Least::Above(0.0), Most::To(10.0));
        check.float("inner.lr_final", i.lr_final, Least::From(0.0), Most::To(1.0));
        check.range("inner.warmup_steps", i.warmup_steps, 0, 1 << 30);
        check.float("inner.beta1", i.beta1, Least::From(0.0), Most::Below(1.0));
        check.float("inner.beta2", i.beta2, Least::From(0.0), Most::Below(1.0));
        check.float("inner.eps", i.eps, Least::Above(0.0), Most::To(1.0));
        check.float("inner.weight_decay", i.weight_decay, Least::From(0.0), Most::To(10.0));
        check.float("inner.clip", i.clip, Least::From(0.0), Most::To(1e6));
    }

    fn check_outer(&self, check: &mut Check) {
        let table = &self.outer.lr;
        let shown = || format!("{} entries", table.len());
        let must = format!("a table of 1 to {OUTER_LR_ENTRIES_MAX} entries");
        check.holds((1..=OUTER_LR_ENTRIES_MAX).contains(&table.len()), "outer.lr", shown(), must);
        let starts = table.first().is_none_or(|(count, _)| *count == 1);
        let rises = table.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let must = "contributor counts that rise from 1: every group has a rate".to_owned();
        check.holds(starts && rises, "outer.lr", shown(), must);
        for (count, lr) in table.iter().take(OUTER_LR_ENTRIES_MAX) {
            let must = format!("contributor counts up to {MEMBERS_MAX}");
            check.holds(*count as usize <= MEMBERS_MAX, "outer.lr", count, must);
            check.float("outer.lr", *lr, Least::Above(0.0), Most::To(10.0));
        }
        check.float("outer.momentum", self.outer.momentum, Least::From(0.0), Most::Below(1.0));
    }
}

impl RunSpec {
    fn check_sync(&self, check: &mut Check) {
        let SyncSpec { mode, codec, engine, .. } = self.sync.clone();
        self.check_streaming(check);
        self.check_adaptation(check);
        if let Some(pairs) = &self.sync.gossip {
            self.check_pairs(pairs, check);
        }
        if mode == SyncMode::EveryStep {
            let must =
                "1 with sync.mode = \"every-step\": gradients are averaged at each step; inner.accumulate makes a \
                        step longer"
                    .to_owned();
            check.holds(self.inner.steps == 1, "inner.steps", self.inner.steps, must);
            let must =
                "left out: outer means nothing with sync.mode = \"every-step\", where AdamW ([inner]) applies the \
                        average"
                    .to_owned();
            check.holds(self.outer == OuterSpec::unused(), "outer", "set", must);
            let must = "\"adamw\" with sync.mode = \"every-step\": all nodes apply one step there, with the same bits";
            let optimizer = self.inner.optimizer;
            check.holds(optimizer == Optimizer::AdamW, "inner.optimizer", optimizer, must.to_owned());
        }
        let must = format!(
            "\"owners\" with sync.codec = \"{}\": a ring would encode each sum anew at every hop, and lose more at each",
            codec.name()
        );
        check.holds(codec.suits_rings() || engine == EngineKind::Owners, "sync.engine", engine, must);
        let Codec::TopK { k } = codec else { return };
        check.range("sync.k", k.into(), 1, TOPK_K_MAX.into());
        let Some(rounds) = self.rounds_at_most() else { return };
        let fragments = u64::from(self.sync.fragments.max(1));
        let least = (TOPK_TURNS_MIN * TOPK_BLOCK as u64).div_ceil(u64::from(k.max(1))).saturating_mul(fragments);
        let must = format!(
            "another codec than top-k, or the run must have at least {least} rounds instead of at most {rounds}: with k = {k} \
             a value is sent about every {} rounds, and it has to be sent {TOPK_TURNS_MIN} times for the error feedback to \
             be more than a delay. Raise sync.k, or use int4",
            (TOPK_BLOCK as u64 / u64::from(k.max(1))).saturating_mul(fragments)
        );
        check.holds(rounds >= least, "sync.codec", codec, must);
    }

    /// Fragments, overlap and mixing (Streaming DiLoCo, arXiv 2501.18512).
    fn check_streaming(&self, check: &mut Check) {
        let SyncSpec { mode, fragments, overlap, mixing, .. } = self.sync;
        check.range("sync.fragments", fragments, 1, FRAGMENTS_MAX);
        check.range("sync.overlap", overlap, 0, OVERLAP_MAX);
        check.float("sync.mixing", mixing, Least::From(0.0), Most::Below(1.0));
        if mode == SyncMode::EveryStep {
            let why = "with sync.mode = \"every-step\": a gradient covers all parameters of the common state, so a \
                       member has no parameters of its own to keep or to go on from";
            check.holds(fragments == 1, "sync.fragments", fragments, format!("1 {why}"));
            check.holds(overlap == 0, "sync.overlap", overlap, format!("0 {why}"));
            check.holds(mixing == 0.0, "sync.mixing", mixing, format!("0 {why}"));
            return;
        }
        let chunks = self.parameters().div_ceil(CHUNK_ELEMENTS as u64);
        let must = format!(
            "at most {chunks}: a fragment has at least one chunk of {CHUNK_ELEMENTS} parameters, and this model has \
             {chunks}"
        );
        check.holds(u64::from(fragments) <= chunks.max(1), "sync.fragments", fragments, must);
        let must = format!("at most inner.steps ({}): a lease covers one round", self.inner.steps);
        check.holds(overlap <= self.inner.steps, "sync.overlap", overlap, must);
        let lost = fragments == 1 && overlap > 0 && mixing == 0.0;
        let must = "above 0 with sync.overlap and a single fragment (0.5 was published): the progress of the steps ahead \
                    would be overwritten";
        check.holds(!lost, "sync.mixing", mixing, must.to_owned());
    }

    /// The controller's choice of the inner steps ([`crate::control`]).
    fn check_adaptation(&self, check: &mut Check) {
        let (steps, most) = (self.inner.steps, self.sync.gap_max);
        let SyncSpec { codec, coarsest, .. } = self.sync;
        if let Some(coarsest) = coarsest {
            let chosen = most > 0 && coarsest > codec && Codec::RUNGS.contains(&coarsest);
            let must = format!("a codec coarser than {codec}, and no top-k, where the flock chooses its inner steps");
            check.holds(chosen, "sync.coarsest", coarsest, must);
        }
        if most == 0 {
            return;
        }
        let must = format!("0, or between inner.steps ({steps}) and {INNER_STEPS_MAX}");
        check.holds((steps..=INNER_STEPS_MAX).contains(&most), "sync.gap_max", most, must);
        let samples = self.inner.samples(most);
        let must = format!("at most {SAMPLES_MAX} sequences a round (steps x batch x accumulate)");
        check.holds(samples <= SAMPLES_MAX, "sync.gap_max", format!("{samples} sequences"), must);
        if let Some(why) = self.fixes_steps() {
            let must = format!("left out, or false, {why}: the flock cannot choose its inner steps there");
            check.holds(false, "sync.adapt", "true", must);
        }
    }

    /// Why no flock of this run can choose its inner steps, if so.
    pub fn fixes_steps(&self) -> Option<&'static str> {
        let SyncSpec { mode, codec, gossip, fragments, overlap, .. } = &self.sync;
        let reasons = [
            (*mode == SyncMode::EveryStep, "with sync.mode = \"every-step\", where each step is averaged"),
            (matches!(codec, Codec::TopK { .. }), "with sync.codec = \"top-k\", whose horizon counts rounds"),
            (gossip.is_some(), "with sync.gossip, whose exchanges fall between a fixed number of steps"),
            (*fragments > 1, "with sync.fragments, since a part is averaged in some rounds only"),
            (*overlap > 0, "with sync.overlap, whose steps are in no round's cost"),
            (self.task.is_some(), "with task.kind = \"external\", of which no law is known"),
            (
                self.outer.momentum > MOMENTUM_MAX,
                "with an outer.momentum above 0.3, which counts rounds (optimizers other than Muon have more where \
                 outer.momentum is left out)",
            ),
        ];
        reasons.into_iter().find(|(holds, _)| *holds).map(|(_, why)| why)
    }

    fn check_pairs(&self, pairs: &GossipSpec, check: &mut Check) {
        let steps = self.inner.steps;
        let must = format!("at least 1 and below inner.steps ({steps}): exchanges fall between the steps of a round");
        check.holds(pairs.steps >= 1 && pairs.steps < steps, "sync.gossip.steps", pairs.steps, must);
        check.float("sync.gossip.alpha", pairs.alpha, Least::From(0.0), Most::To(ALPHA_MAX));
        check.float("sync.gossip.beta", pairs.beta, Least::Above(0.0), Most::To(2.0));
        check.float("sync.gossip.gamma", pairs.gamma, Least::Above(pairs.alpha), Most::To(GAMMA_MAX));
        let must = "left out with sync.mode = \"every-step\": nobody has parameters of its own to mix there".to_owned();
        check.holds(self.sync.mode == SyncMode::Rounds, "sync.gossip", "set", must);
        let must = "\"owners\" with sync.gossip: owners add up what pairs have mixed".to_owned();
        check.holds(self.sync.engine == EngineKind::Owners, "sync.engine", self.sync.engine, must);
        let must =
            "left out with sync.fragments, sync.overlap and sync.mixing: members that stream have parameters of their \
                    own from one round to the next, and pairs begin each round from everybody's"
                .to_owned();
        check.holds(!self.sync.streams(), "sync.gossip", "set", must);
    }

    /// The most rounds that the budget allows; `None` if it sets no bound. A bound on tokens takes longest if one
    /// member alone reaches it.
    fn rounds_at_most(&self) -> Option<u64> {
        let of_round = self.inner.samples(self.inner.steps).saturating_mul(self.sample_weight().into()).max(1);
        let by_tokens = (self.budget.tokens > 0).then(|| self.budget.tokens.div_ceil(of_round));
        let by_rounds = (self.budget.rounds > 0).then_some(self.budget.rounds);
        by_tokens.into_iter().chain(by_rounds).min()
    }

    fn check_flock(&self, check: &mut Check) {
        // More than a day is too long for a person to wait for a flock that does nothing.
        check.range("partition.grace_ms", self.partition.grace_ms, 1_000, 86_400_000);
        let (mode, allow) = (self.admission.mode, &self.admission.allow);
        let shown = || format!("{} identities", allow.len());
        let listed = mode == AdmissionMode::List;
        let count = if listed { (1..=ALLOWED_MAX).contains(&allow.len()) } else { allow.is_empty() };
        let must = format!("1 to {ALLOWED_MAX} identities with admission.mode = \"list\", none otherwise");
        check.holds(count, "admission.allow", shown(), must);
        let ascend = allow.windows(2).all(|pair| pair[0] < pair[1]);
        check.holds(ascend, "admission.allow", shown(), "in ascending order without repeats".to_owned());
        check.range("join.patience_ms", self.join.patience_ms, 0, JOIN_PATIENCE_MAX);
        check.range("join.share", self.join.share, 0, JOIN_SHARE_MAX);
        check.range("admission.probation", self.admission.probation, 0, PROBATION_MAX);
        let chosen = mode == AdmissionMode::Open || self.admission.probation == 0;
        let must = format!("0 with admission.mode = \"{mode}\": its members are chosen, and vote at once");
        check.holds(chosen, "admission.probation", self.admission.probation, must);
        let signer = mode != AdmissionMode::Ticket || self.creator.is_some();
        let must = "set when admission.mode = \"ticket\": somebody has to sign the tickets".to_owned();
        check.holds(signer, "creator", "none", must);
    }
}

enum Least {
    From(f64),
    Above(f64),
}

enum Most {
    To(f64),
    Below(f64),
}

struct Check {
    problems: Vec<Problem>,
}

impl Check {
    fn holds(&mut self, good: bool, key: &'static str, value: impl ToString, must: String) {
        if !good {
            self.problems.push(Problem { key, value: value.to_string(), must });
        }
    }

    fn range(&mut self, key: &'static str, value: u32, least: u32, most: u32) {
        self.holds((least..=most).contains(&value), key, value, format!("between {least} and {most}"));
    }

    /// Finite, in range, and not minus zero, which would be a second encoding of zero.
    fn float(&mut self, key: &'static str, value: f64, least: Least, most: Most) {
        let (above, from) = match least {
            Least::From(least) => (value >= least, format!("at least {least}")),
            Least::Above(least) => (value > least, format!("above {least}")),
        };
        let (below, to) = match most {
            Most::To(most) => (value <= most, format!("at most {most}")),
            Most::Below(most) => (value < most, format!("below {most}")),
        };
        let good = value.is_finite() && above && below && !value.is_sign_negative();
        self.holds(good, key, format!("{value:?}"), format!("{from} and {to}"));
    }
}
