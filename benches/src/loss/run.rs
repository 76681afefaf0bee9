//! One run of one case: all members in this process, side by side.

use super::averager::Averager;
use super::correction;
use super::gossip::Mixing;
use super::member::{Diverged, Inner, Member};
use super::setting::Setting;
use super::text::Text;
use anyhow::{Context, Result, bail, ensure};
use starling_kernels::host::optimizer::Rule;
use starling_kernels::{DeviceChoice, ModelConfig, TrainerOptions, initial_parameters};
use starling_protocol::gossip;
use starling_protocol::limits::CHUNK_ELEMENTS;
use starling_protocol::outer::{self, adamw::AdamW};
use starling_protocol::run::{InnerSpec, ModelSpec, Optimizer, SyncMode};
use starling_protocol::update::{self, Fragments};

/// Steps until the inner rate is at its peak; then a cosine goes down to a twentieth.
const WARM_UP: f64 = 30.0;
const LR_FINAL: f64 = 0.05;

/// The state of one run.
pub struct Run<'a> {
    setting: &'a Setting,
    text: &'a Text,
    seed: u64,
    members: Vec<Member>,
    fragments: Fragments,
    /// One averager for each fragment.
    averagers: Vec<Averager>,
    mixing: Option<Mixing>,
    /// The optimizer on the mean gradient of every step, if it is not the protocol's AdamW.
    inner: Option<Inner>,
    /// The pseudo-gradients of the members.
    deltas: Vec<Vec<f32>>,
    theta: Vec<f32>,
    /// The moments of the outer optimizer.
    moments: [Vec<f32>; 2],
    /// Steps and sequences before the round that comes next.
    steps: usize,
    sequences: u64,
}

impl<'a> Run<'a> {
    pub fn new(setting: &'a Setting, device: &DeviceChoice, text: &'a Text, seed: u64) -> Result<Self> {
        let Setting { case, model, options, .. } = setting;
        let mut theta = initial_parameters(model, seed);
        flip(model, case.null, &mut theta)?;
        let every_step = case.mode == SyncMode::EveryStep;
        let open = |_| Member::new(device, model, options);
        let members: Vec<Member> = (0..setting.members).map(open).collect::<Result<_>>()?;
        let inner = (every_step && case.inner != Rule::AdamW).then(|| Inner::new(case.inner, model, options));
        let fragments = Fragments::new(case.fragments, theta.len(), CHUNK_ELEMENTS);
        let chunks = update::chunks(theta.len());
        ensure!(fragments.count() <= chunks, "{case}: the model has {chunks} chunks only");
        let coded = gossip::codec(case.codec);
        let mixing = case.gossip.map(|pairs| Mixing::new(pairs, coded, setting.members, theta.len()));
        let averager = |index| Averager::new(*case, setting.members, fragments.range(index).len());
        let averagers = (0..fragments.count()).map(averager).collect();
        let zeros = vec![0.0; theta.len()];
        let (deltas, moments) = (vec![zeros.clone(); setting.members], [zeros.clone(), zeros]);
        Ok(Self {
            setting,
            text,
            seed,
            members,
            fragments,
            averagers,
            mixing,
            inner: inner.transpose()?,
            deltas,
            theta,
            moments,
            steps: 0,
            sequences: 0,
        })
    }

    /// The learning rate of all members at a step.
    fn rate(&self, done: usize) -> f64 {
        let (done, all) = (done as f64, self.setting.steps as f64);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * done / all).min(std::f64::consts::PI).cos());
        self.setting.lr * ((done + 1.0) / WARM_UP).min(1.0) * (LR_FINAL + (1.0 - LR_FINAL) * cosine)
    }

    /// A batch of the text from this sequence of the seed's stream on.
    fn batch(&self, first: u64) -> Vec<u32> {
        let mut tokens = Vec::new();
        for n in first..first + self.setting.options.batch as u64 {
            self.text.sample(self.seed, n, self.setting.model.seq_len, &mut tokens);
        }
        tokens
    }

    /// The first sequence of the member in this place among so many that train, some steps into the round.
    fn first(&self, step: usize, place: usize, of: usize) -> u64 {
        self.sequences + ((step * of + place) * self.setting.options.batch) as u64
    }

    /// The inner steps that are done, and the tokens that all members have trained on.
    pub fn done(&self) -> (usize, u64) {
        (self.steps, self.sequences * self.setting.model.seq_len as u64)
    }

    /// Plays a round, by its number.
    pub fn round(&mut self, round: usize) -> Result<()> {
        let setting = self.setting;
        let next = setting.rounds.get(round).context("the run has no such round")?;
        match setting.case.mode {
            SyncMode::Rounds if setting.case.streams() => self.stream(round, next.steps)?,
            SyncMode::Rounds => self.whole(round, next.steps, &next.who)?,
            SyncMode::EveryStep => self.step(&next.who)?,
        }
        self.steps += next.steps;
        self.sequences += (next.steps * next.who.len() * setting.options.batch) as u64;
        Ok(())
    }

    /// Runs the inner steps of these members, and an outer step.
    fn whole(&mut self, round: usize, steps: usize, who: &[usize]) -> Result<()> {
        for member in who {
            self.members[*member].load(&self.theta)?;
        }
        self.mixing.iter_mut().for_each(|mixing| mixing.begin(self.seed, round));
        for step in 0..steps {
            for (place, member) in who.iter().enumerate() {
                let tokens = self.batch(self.first(step, place, who.len()));
                let rate = self.rate(self.steps + step);
                self.members[*member].step(&tokens, rate)?;
            }
            if let Some(mixing) = &mut self.mixing {
                mixing.after(step as u32 + 1, steps as u32, &mut self.members, &self.theta)?;
            }
        }
        for member in who {
            let delta = &mut self.deltas[*member];
            self.members[*member].read(delta)?;
            delta.iter_mut().zip(&self.theta).for_each(|(trained, theta)| *trained = theta - *trained);
        }
        let mean = self.averaged(0, who)?;
        let (rate, momentum) = self.setting.outer_for(who.len());
        let (theta, moments) = (&mut self.theta, &mut self.moments[0]);
        let sound = match self.setting.case.corrected {
            Some(of) => correction::step(theta, moments, &mean, [rate, momentum], steps as f64 / of as f64),
            None => outer::nesterov(theta, moments, &mean, rate, momentum),
        };
        ensure!(sound, Diverged);
        if self.setting.case.moments.is_some_and(|rounds| (round + 1).is_multiple_of(rounds)) {
            self.share_moments(who)?;
        }
        Ok(())
    }

    /// Gives these members the mean of their moments. Nobody's count of steps changes.
    fn share_moments(&mut self, who: &[usize]) -> Result<()> {
        let mut mean = vec![0.0; 2 * self.theta.len()];
        for member in who {
            self.members[*member].add_moments(1.0 / who.len() as f32, &mut mean)?;
        }
        who.iter().try_for_each(|member| self.members[*member].set_moments(&mean))
    }

    /// A round of a streaming case: members keep parameters of their own, and one fragment is averaged. Each member
    /// does its first steps of the next round before it has the average.
    fn stream(&mut self, round: usize, steps: usize) -> Result<()> {
        let overlap = self.setting.case.overlap;
        let last = round + 1 == self.setting.rounds.len();
        let range = self.fragments.of_round(round as u64 + 1);
        let mut own = self.theta.clone();
        for member in 0..self.members.len() {
            if round == 0 {
                self.members[member].load(&self.theta)?;
            }
            let begun = if round == 0 { 0 } else { overlap };
            self.train(member, begun..steps)?;
            self.members[member].read(&mut own)?;
            let (theta, own) = (&self.theta[range.clone()], &own[range.clone()]);
            self.deltas[member] = theta.iter().zip(own).map(|(theta, own)| theta - own).collect();
            let ahead = if last { 0 } else { overlap };
            self.train(member, steps..steps + ahead)?;
        }
        let all: Vec<usize> = (0..self.members.len()).collect();
        let mean = self.averaged(self.fragments.turn(round as u64 + 1), &all)?;
        let (rate, momentum) = self.setting.outer_for(all.len());
        let (theta, moments) = (&mut self.theta[range.clone()], &mut self.moments[0][range.clone()]);
        ensure!(outer::nesterov(theta, moments, &mean, rate, momentum), Diverged);
        for member in &mut self.members {
            member.read(&mut own)?;
            update::mix(self.setting.case.mixing, &mut own[range.clone()], &self.theta[range.clone()]);
            member.load(&own)?;
        }
        Ok(())
    }

    /// Trains one of all members for some steps, counted from the round's beginning.
    fn train(&mut self, member: usize, steps: std::ops::Range<usize>) -> Result<()> {
        for step in steps {
            let tokens = self.batch(self.first(step, member, self.members.len()));
            let rate = self.rate(self.steps + step);
            self.members[member].step(&tokens, rate)?;
        }
        Ok(())
    }

    /// Averages a gradient of these members, and does a step by it.
    fn step(&mut self, who: &[usize]) -> Result<()> {
        for (place, member) in who.iter().enumerate() {
            let tokens = self.batch(self.first(0, place, who.len()));
            self.members[*member].load(&self.theta)?;
            self.members[*member].gradient(&tokens, &mut self.deltas[*member])?;
        }
        let mean = self.averaged(0, who)?;
        let rate = self.rate(self.steps);
        if let Some(inner) = &mut self.inner {
            inner.step(&mut self.theta, &mean, rate);
            ensure!(self.theta.iter().all(|x| x.is_finite()), Diverged);
            return Ok(());
        }
        let (inner, model) = specs(self.setting);
        let rule = outer::Rule::AdamW(AdamW::new(&inner, &model, self.steps as u64 + 1, rate));
        let squares = mean.chunks(CHUNK_ELEMENTS).map(outer::adamw::squares).sum();
        let [m, v] = &mut self.moments;
        ensure!(rule.step(rule.scale(squares), 0, &mut self.theta, &mut [m, v], &mean), Diverged);
        Ok(())
    }

    fn averaged(&mut self, fragment: usize, who: &[usize]) -> Result<Vec<f32>> {
        for member in who {
            ensure!(self.deltas[*member].iter().all(|x| x.is_finite()), Diverged);
        }
        self.averagers[fragment].average(&self.deltas, who)
    }

    /// The loss in nats per byte on at most so many held-out sequences.
    pub fn validate(&mut self, sequences: usize) -> Result<f64> {
        let held_out = self.text.held_out(sequences, self.setting.model.seq_len);
        let [first, ..] = &mut self.members[..] else { bail!("the run has no members") };
        // Streaming members go on from their own parameters.
        let mut own = vec![0.0; self.theta.len()];
        first.read(&mut own)?;
        first.load(&self.theta)?;
        let loss = first.evaluate(&held_out)?;
        first.load(&own)?;
        ensure!(loss.is_finite(), Diverged);
        Ok(loss)
    }
}

/// Rounds one parameter otherwise, by its number from 1: a gain of the first layer, which every token meets.
///
/// The last bit that bf16 holds is flipped. A codec's rounding may take the last bit of an f32 back within a round, and
/// both runs would be one.
fn flip(model: &ModelConfig, number: usize, theta: &mut [f32]) -> Result<()> {
    let Some(place) = number.checked_sub(1) else { return Ok(()) };
    let schema = model.schema();
    let gains = schema.tensors.iter().find(|tensor| !tensor.decays()).context("the model has no gains")?;
    ensure!(place < gains.len, "null={number}: the first layer has {} gains", gains.len);
    let gain = &mut theta[gains.offset + place];
    *gain = f32::from_bits(gain.to_bits() ^ (1 << 16));
    Ok(())
}

/// The optimizer and the model in the protocol's terms.
fn specs(setting: &Setting) -> (InnerSpec, ModelSpec) {
    let (options, model): (&TrainerOptions, &ModelConfig) = (&setting.options, &setting.model);
    let inner = InnerSpec {
        optimizer: Optimizer::AdamW,
        steps: 1,
        batch: options.batch as u32,
        accumulate: options.accumulate as u32,
        lr: setting.lr,
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
