//! One run of one case: all members in this process, side by side.

use super::arguments::Arguments;
use super::averager::Averager;
use super::case::Case;
use super::gossip::Mixing;
use super::text::Text;
use anyhow::{Context, Result, ensure};
use starling_kernels::{DeviceChoice, ModelConfig, Trainer, TrainerOptions, initial_parameters, open_trainer};
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::{self, adamw::AdamW};
use starling_protocol::run::{Codec, InnerSpec, ModelSpec};
use starling_protocol::update::{self, Fragments};

/// Outer rate and momentum for short runs: a higher momentum would need more rounds to settle.
const OUTER: (f32, f32) = (0.9, 0.3);
/// Steps until the inner rate is at its peak; then a cosine goes down to a twentieth.
const WARM_UP: f64 = 30.0;
const LR_FINAL: f64 = 0.05;

/// The state of one run.
pub struct Run<'a> {
    arguments: &'a Arguments,
    text: &'a Text,
    seed: u64,
    model: ModelConfig,
    options: TrainerOptions,
    members: Vec<Box<dyn Trainer>>,
    case: Case,
    fragments: Fragments,
    /// One averager for each fragment.
    averagers: Vec<Averager>,
    /// Inner steps of a round.
    pub steps: usize,
    pub rounds: usize,
    mixing: Option<Mixing>,
    /// The pseudo-gradients of the members.
    deltas: Vec<Vec<f32>>,
    theta: Vec<f32>,
    /// The moments of the outer optimizer.
    moments: [Vec<f32>; 2],
}

impl<'a> Run<'a> {
    pub fn new(arguments: &'a Arguments, text: &'a Text, case: Case, seed: u64) -> Result<Self> {
        let base = ModelConfig::preset(&arguments.preset).context("there is no such preset")?;
        let model = ModelConfig { vocab: 256, seq_len: arguments.seq, ..base };
        let available = std::thread::available_parallelism()?.get();
        let threads = if arguments.threads > 0 { arguments.threads } else { available };
        let options = TrainerOptions {
            batch: arguments.batch,
            accumulate: 1,
            threads,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.01,
            clip: 1.0,
        };
        let theta = initial_parameters(&model, seed);
        let open = |_| open_trainer(&DeviceChoice::Cpu, &model, &options).context("the CPU");
        let members: Vec<Box<dyn Trainer>> = (0..arguments.members).map(open).collect::<Result<_>>()?;
        let fragments = Fragments::new(case.fragments, theta.len(), CHUNK_ELEMENTS);
        let chunks = update::chunks(theta.len());
        ensure!(fragments.count() <= chunks, "{case}: the model has {chunks} chunks only");
        let steps = case.steps.unwrap_or(arguments.steps);
        let rounds = arguments.rounds * arguments.steps / steps;
        ensure!(case.overlap <= steps, "{case}: a round has {steps} steps only");
        let coded = if case.codec == Codec::Bf16 { Codec::Bf16 } else { Codec::Int8 };
        let mixing = case.gossip.map(|pairs| Mixing::new(pairs, coded, arguments.members, theta.len()));
        let averager = |index| Averager::new(case, arguments.members, fragments.range(index).len());
        let averagers = (0..fragments.count()).map(averager).collect();
        let zeros = vec![0.0; theta.len()];
        let (deltas, moments) = (vec![zeros.clone(); arguments.members], [zeros.clone(), zeros]);
        Ok(Self {
            arguments,
            text,
            seed,
            members,
            case,
            fragments,
            averagers,
            steps,
            rounds,
            mixing,
            deltas,
            moments,
            theta,
            model,
            options,
        })
    }

    /// The learning rate of all members at a step.
    fn rate(&self, done: usize) -> f64 {
        let (done, all) = (done as f64, (self.arguments.rounds * self.arguments.steps) as f64);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done / all).cos());
        self.arguments.lr * ((done + 1.0) / WARM_UP).min(1.0) * (LR_FINAL + (1.0 - LR_FINAL) * cosine)
    }

    /// The tokens that a member trains on in this step.
    fn tokens(&self, done: usize, member: usize) -> Vec<u32> {
        let first = ((done * self.arguments.members + member) * self.arguments.batch) as u64;
        let mut tokens = Vec::new();
        let samples = first..first + self.arguments.batch as u64;
        samples.for_each(|n| self.text.sample(self.seed, n, self.arguments.seq, &mut tokens));
        tokens
    }

    /// Runs the inner steps of all members, and an outer step.
    pub fn round(&mut self, round: usize) -> Result<()> {
        let steps = self.steps;
        self.members.iter_mut().try_for_each(|member| member.load(&self.theta))?;
        self.mixing.iter_mut().for_each(|mixing| mixing.begin(self.seed, round));
        for step in 0..steps {
            let done = round * steps + step;
            (0..self.members.len()).try_for_each(|member| self.train(member, done..done + 1))?;
            if let Some(mixing) = &mut self.mixing {
                mixing.after(step as u32 + 1, steps as u32, &mut self.members, &self.theta)?;
            }
        }
        for member in 0..self.members.len() {
            let delta = &mut self.deltas[member];
            self.members[member].read(delta)?;
            delta.iter_mut().zip(&self.theta).for_each(|(trained, theta)| *trained = theta - *trained);
        }
        let mean = self.averagers[0].average(&self.deltas)?;
        let sound = outer::nesterov(&mut self.theta, &mut self.moments[0], &mean, OUTER.0, OUTER.1);
        ensure!(sound, "the run diverged");
        Ok(())
    }

    /// A round of a streaming case: members keep parameters of their own, and one fragment is averaged. Each member
    /// does its first steps of the next round before it has the average.
    pub fn streaming_round(&mut self, round: usize) -> Result<()> {
        let (steps, overlap) = (self.steps, self.case.overlap);
        let last = round + 1 == self.rounds;
        let range = self.fragments.of_round(round as u64 + 1);
        let mut own = self.theta.clone();
        for member in 0..self.members.len() {
            if round == 0 {
                self.members[member].load(&self.theta)?;
            }
            let begun = if round == 0 { 0 } else { overlap };
            self.train(member, round * steps + begun..(round + 1) * steps)?;
            self.members[member].read(&mut own)?;
            let (theta, own) = (&self.theta[range.clone()], &own[range.clone()]);
            self.deltas[member] = theta.iter().zip(own).map(|(theta, own)| theta - own).collect();
            let ahead = if last { 0 } else { overlap };
            self.train(member, (round + 1) * steps..(round + 1) * steps + ahead)?;
        }
        let mean = self.averagers[self.fragments.turn(round as u64 + 1)].average(&self.deltas)?;
        let (theta, momentum) = (&mut self.theta[range.clone()], &mut self.moments[0][range.clone()]);
        ensure!(outer::nesterov(theta, momentum, &mean, OUTER.0, OUTER.1), "the run diverged");
        for member in &mut self.members {
            member.read(&mut own)?;
            update::mix(self.case.mixing, &mut own[range.clone()], &self.theta[range.clone()]);
            member.load(&own)?;
        }
        Ok(())
    }

    fn train(&mut self, member: usize, steps: std::ops::Range<usize>) -> Result<()> {
        for done in steps {
            let (tokens, rate) = (self.tokens(done, member), self.rate(done));
            self.members[member].step(&tokens, rate)?;
        }
        Ok(())
    }

    /// Averages a gradient of every member, and does a step of AdamW.
    pub fn step(&mut self, done: usize) -> Result<()> {
        for member in 0..self.members.len() {
            let tokens = self.tokens(done, member);
            self.members[member].load(&self.theta)?;
            self.members[member].gradient(&tokens, &mut self.deltas[member])?;
        }
        let mean = self.averagers[0].average(&self.deltas)?;
        let (inner, model) = self.specs();
        let rule = outer::Rule::AdamW(AdamW::new(&inner, &model, done as u64 + 1, self.rate(done)));
        let squares = mean.chunks(CHUNK_ELEMENTS).map(outer::adamw::squares).sum();
        let [m, v] = &mut self.moments;
        ensure!(rule.step(rule.scale(squares), 0, &mut self.theta, &mut [m, v], &mean), "the run diverged");
        Ok(())
    }

    /// The loss in nats per byte on at most so many held-out sequences.
    pub fn validate(&mut self, sequences: usize) -> Result<f64> {
        let length = self.arguments.seq + 1;
        let held_out: Vec<u32> = self.text.held_out.iter().map(|byte| u32::from(*byte)).collect();
        let batch = self.arguments.batch;
        let whole = (held_out.len() / length).min(sequences) / batch * batch;
        // Streaming members go on from their own parameters.
        let mut own = vec![0.0; self.theta.len()];
        self.members[0].read(&mut own)?;
        self.members[0].load(&self.theta)?;
        let (nats, tokens) = self.members[0].evaluate(&held_out[..whole * length])?;
        self.members[0].load(&own)?;
        Ok(nats / tokens.max(1) as f64)
    }

    /// The optimizer and the model in the protocol's terms.
    fn specs(&self) -> (InnerSpec, ModelSpec) {
        let (options, model) = (&self.options, &self.model);
        let inner = InnerSpec {
            steps: 1,
            batch: options.batch as u32,
            accumulate: options.accumulate as u32,
            lr: self.arguments.lr,
            lr_final: LR_FINAL,
            warmup_steps: WARM_UP as u32,
            beta1: options.beta1,
            beta2: options.beta2,
            eps: options.eps,
            weight_decay: options.weight_decay,
            clip: options.clip,
        };
        let model = ModelSpec {
            vocab: model.vocab as u32,
            d_model: model.d_model as u32,
            layers: model.layers as u32,
            heads: model.heads as u32,
            kv_heads: model.kv_heads as u32,
            ffn: model.ffn as u32,
            seq_len: model.seq_len as u32,
            tied: model.tied,
            rope_theta: model.rope_theta,
            norm_eps: model.norm_eps,
        };
        (inner, model)
    }
}
