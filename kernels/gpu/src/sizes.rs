//! Sizes of a model, and the places of its parameters on a device.

/// Elements to which the start of every matrix and gain is padded: 256 bytes in bf16, which every device can bind.
pub const ALIGN: usize = 128;

/// Sizes of a decoder-only transformer of the Llama family. The caller has checked them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Distinct tokens.
    pub vocab: usize,
    /// Width of the residual stream.
    pub width: usize,
    pub layers: usize,
    /// Query heads; each is `width / heads` wide.
    pub heads: usize,
    /// Key and value heads, each shared by `heads / kv_heads` query heads.
    pub kv_heads: usize,
    /// Width of the feed-forward layer.
    pub ffn: usize,
    /// Tokens a sequence.
    pub tokens: usize,
    /// Whether the output projection is the embedding table.
    pub tied: bool,
    /// Base of the rotary embedding's wavelengths.
    pub theta: f64,
    /// The number that RMSNorm adds to the mean square.
    pub eps: f32,
}

impl Sizes {
    pub const fn head_dim(&self) -> usize {
        self.width / self.heads
    }

    /// Columns of queries, keys and values.
    pub const fn qkv(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim()
    }
}

/// A weight: a matrix `[rows, width]`, or a gain (one row).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// First element in the host's flat vector.
    pub host: usize,
    /// First element on the device.
    pub device: usize,
    pub rows: usize,
    pub width: usize,
}

impl Weight {
    pub const fn elements(&self) -> usize {
        self.rows * self.width
    }

    /// Some of its rows.
    const fn part(&self, first: usize, rows: usize) -> Self {
        let before = first * self.width;
        Self { host: self.host + before, device: self.device + before, rows, width: self.width }
    }
}

/// Weights of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    pub attention_norm: Weight,
    pub qkv: Weight,
    pub out: Weight,
    pub mlp_norm: Weight,
    pub gate_up: Weight,
    pub down: Weight,
}

/// All weights. On the host they follow each other without gaps, in the order of the fields; on the device all
/// matrices come first, then all gains, each padded to a multiple of [`ALIGN`] elements, so that one comparison tells
/// whether weight decay applies.
#[derive(Clone, Debug)]
pub struct Layout {
    pub embed: Weight,
    pub layers: Vec<Layer>,
    pub norm: Weight,
    /// The embedding's place when tied.
    pub output: Weight,
    /// Elements of the host's vector.
    pub host: usize,
    /// Elements on the device, padding too.
    pub device: usize,
    /// Elements of matrices on the device, padding too: the gains begin there.
    pub decayed: usize,
}

impl Layout {
    pub fn of(sizes: &Sizes) -> Self {
        let mut places = Places { host: 0, matrices: 0, gains: 0 };
        let (d, ffn) = (sizes.width, sizes.ffn);
        let embed = places.matrix(sizes.vocab, d);
        let mut layers: Vec<Layer> = (0..sizes.layers)
            .map(|_| Layer {
                attention_norm: places.gain(d),
                qkv: places.matrix(sizes.qkv(), d),
                out: places.matrix(d, d),
                mlp_norm: places.gain(d),
                gate_up: places.matrix(2 * ffn, d),
                down: places.matrix(d, ffn),
            })
            .collect();
        let mut norm = places.gain(d);
        let output = if sizes.tied { embed } else { places.matrix(sizes.vocab, d) };
        // The gains' places were counted from zero.
        let gains = layers.iter_mut().flat_map(|layer| [&mut layer.attention_norm, &mut layer.mlp_norm]);
        gains.chain([&mut norm]).for_each(|gain| gain.device += places.matrices);
        let device = places.matrices + places.gains;
        Self { embed, layers, norm, output, host: places.host, device, decayed: places.matrices }
    }

    /// Every weight once, in the host's order.
    pub fn weights(&self) -> Vec<Weight> {
        let layers = self.layers.iter();
        let layers = layers.flat_map(|l| [l.attention_norm, l.qkv, l.out, l.mlp_norm, l.gate_up, l.down]);
        let last = (self.output != self.embed).then_some(self.output);
        std::iter::once(self.embed).chain(layers).chain([self.norm]).chain(last).collect()
    }

    /// The matrices of the layers one by one, as Muon takes them: queries, keys, values, the attention's output, gate,
    /// up and down.
    pub fn inner_matrices(&self) -> Vec<Weight> {
        let layers = self.layers.iter().flat_map(|layer| {
            let Layer { qkv, out, gate_up, down, .. } = layer;
            let (d, kv, ffn) = (out.rows, (qkv.rows - out.rows) / 2, down.width);
            let [q, k, v] = [(0, d), (d, kv), (d + kv, kv)].map(|(first, rows)| qkv.part(first, rows));
            [q, k, v, *out, gate_up.part(0, ffn), gate_up.part(ffn, ffn), *down]
        });
        layers.collect()
    }

    /// Every gain, in the order in which the passes meet them.
    pub fn gains(&self) -> Vec<Weight> {
        self.weights().into_iter().filter(|weight| weight.device >= self.decayed).collect()
    }
}

/// The next free places.
struct Places {
    host: usize,
    matrices: usize,
    gains: usize,
}

impl Places {
    fn matrix(&mut self, rows: usize, width: usize) -> Weight {
        let weight = Weight { host: self.host, device: self.matrices, rows, width };
        self.host += weight.elements();
        self.matrices += weight.elements().next_multiple_of(ALIGN);
        weight
    }

    fn gain(&mut self, width: usize) -> Weight {
        let weight = Weight { host: self.host, device: self.gains, rows: 1, width };
        self.host += width;
        self.gains += width.next_multiple_of(ALIGN);
        weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub fn sizes() -> Sizes {
        Sizes {
            vocab: 250,
            width: 96,
            layers: 3,
            heads: 6,
            kv_heads: 2,
            ffn: 100,
            tokens: 33,
            tied: true,
            theta: 1e4,
            eps: 1e-5,
        }
    }

    #[test]
    fn weights_follow_each_other_on_the_host_and_lie_apart_on_the_device() {
        for tied in [true, false] {
            let layout = Layout::of(&Sizes { tied, ..sizes() });
            let weights = layout.weights();
            assert_eq!(weights[0].host, 0);
            assert!(weights.windows(2).all(|pair| pair[0].host + pair[0].elements() == pair[1].host));
            assert_eq!(weights.iter().map(Weight::elements).sum::<usize>(), layout.host);
            let mut on_device = weights.clone();
            on_device.sort_by_key(|weight| weight.device);
            assert!(on_device.windows(2).all(|pair| pair[0].device + pair[0].elements() <= pair[1].device));
            assert!(on_device.iter().all(|weight| weight.device.is_multiple_of(ALIGN)));
            let last = on_device.last().unwrap();
            assert_eq!((last.device + last.elements()).next_multiple_of(ALIGN), layout.device);
            for weight in &weights {
                assert_eq!(weight.rows > 1, weight.device < layout.decayed, "{weight:?}");
            }
            assert_eq!(layout.gains().len(), 2 * 3 + 1);
            let inner = layout.inner_matrices();
            let of_layers = layout.host - layout.embed.elements() * if tied { 1 } else { 2 } - 7 * 96;
            assert_eq!(inner.iter().map(Weight::elements).sum::<usize>(), of_layers);
            assert_eq!((inner[1].device, inner[2].device), (inner[0].device + 96 * 96, inner[1].device + 32 * 96));
            assert_eq!((inner[5].host, inner[6]), (layout.layers[0].gate_up.host + 100 * 96, layout.layers[0].down));
            assert_eq!(layout.output == layout.embed, tied);
        }
    }
}
