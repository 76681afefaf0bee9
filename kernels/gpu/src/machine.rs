//! A model on a device: its memory, its weights, and what the host asks of it.

use crate::attention::{self, Way};
use crate::buffers::{Batch, Buffers, Need};
use crate::carrier::Carrier;
use crate::embed::Segments;
use crate::launches::Tally;
use crate::muon::{Muon, Plan};
use crate::optimizer::{Rule, Update};
use crate::products::{Precision, Products};
use crate::session::{Moment, Report, Session};
use crate::sizes::{ALIGN, Layout, Sizes, Weight};
use crate::total::{self, Total};
use crate::transfer::{self, Places};
use crate::ways::Ways;
use crate::{fill, optimizer, rope, words};
use cubecl::MemoryAllocationMode;
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::marker::PhantomData;

/// A model on a device, with activations of type `A`.
pub struct Machine<R: Runtime, A: Float + CubeElement> {
    pub(crate) client: ComputeClient<R>,
    pub(crate) sizes: Sizes,
    pub(crate) batch: Batch,
    pub(crate) layout: Layout,
    pub(crate) buffers: Buffers<Handle>,
    pub(crate) products: Products<R>,
    pub(crate) way: Way,
    /// The first element of each gain on the device: u32.
    pub(crate) gain_places: Handle,
    /// The passes of Muon's step, and the first element of each of its matrices on the device: u32.
    plan: Plan,
    matrix_places: Handle,
    carrier: Carrier,
    told: String,
    /// The count of the first launches, until it is looked at.
    begun: Option<Tally>,
    activation: PhantomData<A>,
}

/// Tokens of a part of a batch, on the device.
pub struct Part {
    pub inputs: Handle,
    pub targets: Handle,
    pub segments: Segments,
    pub segment_words: Handle,
    pub sequences: usize,
    /// Its number among the parts of its step.
    pub number: usize,
}

impl<R: Runtime, A: Float + CubeElement> Machine<R, A> {
    /// Sets memory aside and fills it with zeros, without waiting: see [`Session::check`].
    ///
    /// # Errors
    /// The device's words.
    pub fn new(client: ComputeClient<R>, sizes: &Sizes, batch: &Batch, ways: Ways) -> Result<Self, String> {
        let precision = if ways.bf16 { Precision::Bf16 } else { Precision::F32 };
        let (products, told) = words::guarded(|| match ways.cublas {
            true => Products::open(&client, precision),
            false => (Products::open_portable(precision), "products by cubek".into()),
        })?;
        let layout = Layout::of(sizes);
        let (carrier, slow) = words::guarded(|| Carrier::open(&client, Places::of(&layout)))?;
        let slow = slow.map_or(String::new(), |slow| format!(", {slow}"));
        let cores = if ways.tensor_cores { "with tensor cores" } else { "without them" };
        // Exactly what is asked for, not a share of a larger page.
        // SAFETY: the mode is set back, and nothing else uses this client meanwhile.
        unsafe { client.allocation_mode(MemoryAllocationMode::Persistent) };
        let buffers = Buffers::of(sizes, batch, &mut |bytes| client.empty(bytes as usize));
        // SAFETY: as above.
        unsafe { client.allocation_mode(MemoryAllocationMode::Auto) };
        let gains: Vec<u32> = layout.gains().iter().map(|gain| gain.device as u32).collect();
        let plan = Plan::of(&layout);
        let mut machine = Self {
            matrix_places: client.create_from_slice(bytemuck::cast_slice(&plan.starts)),
            plan,
            gain_places: client.create_from_slice(bytemuck::cast_slice(&gains)),
            carrier,
            way: if ways.tensor_cores { Way::TensorCores } else { Way::Portable },
            told: format!("{told}, attention {cores}{slow}"),
            client,
            sizes: *sizes,
            batch: *batch,
            layout,
            buffers,
            products,
            begun: None,
            activation: PhantomData,
        };
        machine.begun = Some(machine.begin());
        Ok(machine)
    }

    /// Zeros where padding or the first round reads them, and the rotary embedding's tables.
    fn begin(&self) -> Tally {
        let (tally, device) = (Tally::new(&self.client), self.layout.device);
        let Buffers { master, gradient, moments: [first, second], losses, cos, sin, .. } = &self.buffers;
        let sizes = &self.sizes;
        for vector in [master, gradient, first, second] {
            fill::zero(&self.client, vector, device, tally.of(1));
        }
        fill::zero(&self.client, losses, self.batch.most_losses(sizes), tally.of(1));
        let tables = rope::tables(sizes.tokens, sizes.head_dim(), sizes.theta);
        for (table, target) in tables.iter().zip([cos, sin]) {
            let source = self.client.create_from_slice(bytemuck::cast_slice(table));
            fill::convert::<R, f32>(&self.client, &source, target, table.len(), tally.of(1));
        }
        self.copy_weights(&tally);
        tally
    }

    /// A weight as products read it.
    pub(crate) fn weight(&self, weight: &Weight) -> Handle {
        let (vector, bytes) = match &self.buffers.weights {
            Some(copy) => (copy, size_of::<A>()),
            None => (&self.buffers.master, size_of::<f32>()),
        };
        vector.clone().offset_start((bytes * weight.device) as u64)
    }

    /// A weight as the optimizer has it: f32.
    pub(crate) fn master(&self, weight: &Weight) -> Handle {
        self.buffers.master.clone().offset_start(4 * weight.device as u64)
    }

    /// The gradient of a weight: f32.
    pub(crate) fn gradient_of(&self, weight: &Weight) -> Handle {
        self.buffers.gradient.clone().offset_start(4 * weight.device as u64)
    }

    /// Rounds the master to the copy that products read.
    fn copy_weights(&self, tally: &Tally) {
        if let Some(copy) = &self.buffers.weights {
            fill::convert::<R, A>(&self.client, &self.buffers.master, copy, self.layout.device, tally.of(1));
        }
    }

    /// Waits for all launches, finds those that did not run, and reads the report.
    fn finish<const N: usize>(&self, tally: &Tally) -> Result<[f32; N], String> {
        self.products.check()?;
        tally.read(&self.client)
    }

    /// Sends the tokens of a part.
    pub(crate) fn part(&self, inputs: &[u32], targets: &[u32], number: usize) -> Result<Part, String> {
        let segments = Segments::of(inputs, self.sizes.vocab)?;
        // One buffer for all words, whose parts begin where every device can bind.
        let lists = [inputs, targets, segments.words()];
        let mut words = Vec::with_capacity(lists.iter().map(|list| list.len() + ALIGN).sum());
        let starts = lists.map(|list| {
            words.resize(words.len().next_multiple_of(ALIGN), 0);
            let start = 4 * words.len() as u64;
            words.extend_from_slice(list);
            start
        });
        let whole = self.client.create_from_slice(bytemuck::cast_slice(&words));
        let [inputs_at, targets_at, segments_at] = starts.map(|start| whole.clone().offset_start(start));
        let sequences = inputs.len() / self.sizes.tokens;
        Ok(Part { inputs: inputs_at, targets: targets_at, segments, segment_words: segments_at, sequences, number })
    }

    pub(crate) fn shape(&self, sequences: usize) -> attention::Shape {
        attention::Shape::of(&self.sizes, sequences)
    }

    /// All passes of a step: leaves the gradient on the device, and loss and norm in the report.
    fn passes(&self, inputs: &[u32], targets: &[u32], tally: &Tally) -> Result<(), String> {
        let (rows, count) = (self.batch.sequences * self.sizes.tokens, inputs.len());
        let gains = self.layout.device - self.layout.decayed;
        let client = &self.client;
        let tail = self.buffers.gradient.clone().offset_start(4 * self.layout.decayed as u64);
        fill::zero(client, &tail, gains, tally.of(1));
        if !self.sizes.tied {
            let embed = self.layout.embed;
            fill::zero(client, &self.gradient_of(&embed), embed.elements(), tally.of(1));
        }
        let scale = 1.0 / count as f32;
        for (number, (inputs, targets)) in inputs.chunks(rows).zip(targets.chunks(rows)).enumerate() {
            let part = self.part(inputs, targets, number)?;
            self.forward(&part, tally)?;
            self.head(&part, Some(scale), tally)?;
            self.backward(&part, tally)?;
        }
        let Buffers { losses, gradient, partials, .. } = &self.buffers;
        let places = self.batch.losses(&self.sizes, count.div_ceil(rows));
        let slot = (tally.report(), total::LOSS);
        total::total(client, losses, places, Total::Sum(scale), partials, slot, tally.of(total::LAUNCHES));
        let (len, slot) = (self.layout.device, (tally.report(), total::NORM));
        total::total(client, gradient, len, Total::Norm, partials, slot, tally.of(total::LAUNCHES));
        Ok(())
    }

    /// The step of the optimizer, after the passes.
    fn update(&self, update: &Update, tally: &Tally) -> Result<(), String> {
        let Buffers { master, gradient, moments: [first, second], weights, muon, products, .. } = &self.buffers;
        let (copy, len, decayed) = (weights.as_ref(), self.layout.device, self.layout.decayed);
        let vectors = optimizer::Vectors { master, m: first, v: second, gradient, copy, len, decayed };
        match (update.rule, muon) {
            (Rule::Muon, None) => Err("it has no memory for steps of Muon".into()),
            (Rule::Muon, Some(scratch)) => {
                let (client, plan, starts) = (&self.client, &self.plan, &self.matrix_places);
                let muon = Muon { client, plan, starts, scratch, products: &self.products, workspace: products };
                muon.step::<A>(vectors, update, tally)
            }
            _ => {
                optimizer::step::<R, A>(&self.client, vectors, update, tally.report(), tally.of(1));
                Ok(())
            }
        }
    }

    fn moment(&self, which: Moment) -> &Handle {
        let [first, second] = &self.buffers.moments;
        if which == Moment::First { first } else { second }
    }
}

impl<R: Runtime, A: Float + CubeElement> Session for Machine<R, A> {
    fn ways(&self) -> String {
        let precision = if size_of::<A>() == 2 { "bf16" } else { "f32" };
        format!("{}, activations in {precision}", self.told)
    }

    fn need(&self) -> Need {
        Need::of(&self.sizes, &self.batch)
    }

    fn check(&mut self) -> Result<(), String> {
        self.begun.take().map_or(Ok(()), |tally| self.finish::<0>(&tally).map(|_| ()))
    }

    fn load(&mut self, parameters: &[f32]) -> Result<(), String> {
        let tally = Tally::new(&self.client);
        self.carrier.write(&self.client, parameters, &self.buffers.master, &tally)?;
        self.copy_weights(&tally);
        self.finish::<0>(&tally).map(|_| ())
    }

    fn read(&mut self, out: &mut [f32]) -> Result<(), String> {
        self.carrier.read(&self.client, &self.buffers.master, out)
    }

    fn step(&mut self, inputs: &[u32], targets: &[u32], update: &Update) -> Result<Report, String> {
        let tally = Tally::new(&self.client);
        self.passes(inputs, targets, &tally)?;
        self.update(update, &tally)?;
        let [loss, norm, applied, step] = self.finish::<{ optimizer::REPORT }>(&tally)?;
        if step != update.step as f32 {
            return Err(format!("its optimizer told of step {step} instead of {}", update.step));
        }
        let applied = applied == 1.0;
        Ok(Report { loss: loss.into(), norm: norm.into(), applied })
    }

    fn gradient(&mut self, inputs: &[u32], targets: &[u32], out: &mut [f32]) -> Result<Report, String> {
        let tally = Tally::new(&self.client);
        self.passes(inputs, targets, &tally)?;
        let [loss, norm] = self.finish(&tally)?;
        self.carrier.read(&self.client, &self.buffers.gradient, out)?;
        Ok(Report { loss: loss.into(), norm: norm.into(), applied: false })
    }

    fn evaluate(&mut self, inputs: &[u32], targets: &[u32]) -> Result<f64, String> {
        let tally = Tally::new(&self.client);
        let part = self.part(inputs, targets, 0)?;
        self.forward(&part, &tally)?;
        self.head(&part, None, &tally)?;
        let Buffers { losses, partials, .. } = &self.buffers;
        let (slot, launches) = ((tally.report(), total::LOSS), tally.of(total::LAUNCHES));
        total::total(&self.client, losses, inputs.len(), Total::Sum(1.0), partials, slot, launches);
        let [nats] = self.finish(&tally)?;
        Ok(nats.into())
    }

    fn logits(&mut self, inputs: &[u32]) -> Result<Vec<f32>, String> {
        let tally = Tally::new(&self.client);
        // A whole sequence, so that every prompt has the same shape: attention looks back only.
        let mut whole = inputs.to_vec();
        whole.resize(self.sizes.tokens, 0);
        let part = self.part(&whole, &whole, 0)?;
        self.forward(&part, &tally)?;
        self.last_logits(inputs.len() - 1, &tally)?;
        self.finish::<0>(&tally)?;
        let vocab = self.sizes.vocab;
        let bytes = transfer::floats(&self.client, &self.buffers.logits, vocab, 0..vocab)?;
        Ok(bytemuck::pod_collect_to_vec(&bytes))
    }

    fn read_moment(&mut self, which: Moment, start: usize, out: &mut [f32]) -> Result<(), String> {
        let vector = self.moment(which).clone();
        self.carrier.read_some(&self.client, &vector, (start, out))
    }

    fn write_moment(&mut self, which: Moment, start: usize, values: &[f32]) -> Result<(), String> {
        let tally = Tally::new(&self.client);
        let vector = self.moment(which).clone();
        self.carrier.write_some(&self.client, (start, values), &vector, &tally)?;
        self.finish::<0>(&tally).map(|_| ())
    }

    fn clear_moments(&mut self) -> Result<(), String> {
        let tally = Tally::new(&self.client);
        for moment in &self.buffers.moments {
            fill::zero(&self.client, moment, self.layout.device, tally.of(1));
        }
        self.finish::<0>(&tally).map(|_| ())
    }
}
