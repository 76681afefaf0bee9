//! The parameters of a model that are gains of norms: weight decay does not apply to them.

use super::ModelSpec;
use std::ops::Range;

/// The gains of a model in its flat parameters: two norms in each layer, and the last one. They follow from the sizes,
/// in the order of the schema (`docs/protocol/2-records.md` §2.8.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gains {
    /// Elements in front of the first layer, in a layer, and in front of a layer's second norm.
    embedding: u64,
    layer: u64,
    second: u64,
    /// Gains of one norm.
    width: u64,
    layers: u64,
}

impl Gains {
    /// The gains of a model; meaningless for one that is larger than a run may have.
    pub fn of(model: &ModelSpec) -> Self {
        let [vocab, d, layers, ffn] = [model.vocab, model.d_model, model.layers, model.ffn].map(u64::from);
        let kv = d / u64::from(model.heads.max(1)) * u64::from(model.kv_heads);
        let second = (d + 2 * d * d).saturating_add(2 * d * kv);
        let layer = second.saturating_add(d + 3 * d * ffn);
        Self { embedding: vocab * d, layer, second, width: d, layers }
    }

    /// Cuts a range of elements at the gains: ascending pieces that cover it, each with a flag for gains.
    pub fn cut(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, bool)> {
        let gains = *self;
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let next = gains.next(at).map(|next| next.start.max(at)..next.end.min(range.end));
            let (end, inside) = match next.filter(|next| next.start < range.end) {
                Some(next) if next.start == at => (next.end, true),
                Some(next) => (next.start, false),
                None => (range.end, false),
            };
            Some((std::mem::replace(&mut at, end)..end, inside))
        })
    }

    /// The first norm that ends behind `at`.
    fn next(&self, at: u64) -> Option<Range<u64>> {
        let layer = at.saturating_sub(self.embedding).checked_div(self.layer)?.min(self.layers);
        let norms = [(layer, 0), (layer, self.second), (layer.saturating_add(1), 0)];
        norms
            .into_iter()
            .filter(|(layer, second)| *layer < self.layers || (*layer, *second) == (self.layers, 0))
            .find_map(|(layer, within)| {
                let start = layer.checked_mul(self.layer)?.checked_add(self.embedding)?.checked_add(within)?;
                let end = start.checked_add(self.width)?;
                (end > at).then_some(start..end)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(layers: u32) -> ModelSpec {
        ModelSpec { vocab: 5, d_model: 4, layers, heads: 2, kv_heads: 1, ffn: 3, ..crate::wire::sample::spec().model }
    }

    /// Tensor by tensor, as the schema lists them.
    fn by_tensor(model: &ModelSpec) -> Vec<bool> {
        let [vocab, d, ffn] = [model.vocab, model.d_model, model.ffn].map(|n| n as usize);
        let kv = d / model.heads as usize * model.kv_heads as usize;
        let mut gains = vec![false; vocab * d];
        for _ in 0..model.layers {
            gains.extend([true].repeat(d));
            gains.extend([false].repeat(2 * d * d + 2 * d * kv));
            gains.extend([true].repeat(d));
            gains.extend([false].repeat(3 * d * ffn));
        }
        gains.extend([true].repeat(d));
        gains.extend([false].repeat(if model.tied { 0 } else { vocab * d }));
        gains
    }

    #[test]
    fn every_range_is_cut_where_the_tensors_say() {
        for (layers, tied) in [(1, true), (3, false)] {
            let model = ModelSpec { tied, ..model(layers) };
            let (gains, expected) = (Gains::of(&model), by_tensor(&model));
            assert_eq!(expected.len() as u64, model.parameters());
            for start in 0..expected.len() {
                for end in [start, start + 1, (start + 37).min(expected.len()), expected.len()] {
                    let pieces: Vec<_> = gains.cut(start as u64..end as u64).collect();
                    let flat: Vec<bool> = pieces.iter().flat_map(|(r, gain)| r.clone().map(|_| *gain)).collect();
                    assert_eq!(flat, expected[start..end], "{start}..{end}");
                    assert!(pieces.windows(2).all(|pair| pair[0].0.end == pair[1].0.start));
                }
            }
        }
    }

    #[test]
    fn sizes_that_no_run_has_are_cut_all_the_same() {
        let most = u32::MAX;
        let model = ModelSpec { vocab: most, d_model: most, layers: most, heads: 0, ffn: 1 << 18, ..model(1) };
        let pieces: Vec<_> = Gains::of(&model).cut(0..1000).collect();
        assert_eq!(pieces, [(0..1000, false)]);
        assert_eq!(Gains::of(&ModelSpec { d_model: 0, ..model }).cut(0..7).map(|(r, _)| r.end).last(), Some(7));
    }
}
