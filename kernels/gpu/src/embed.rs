//! Embedding: a gather, and a sum of gradients for each token in a fixed order.

use crate::grid::{array, cubes, dim, line, units};
use crate::launches::count;
use cubecl::Runtime;
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Launches of [`backward`].
pub const BACKWARD: u32 = 2;
/// Rows that one cube adds up.
const SEGMENT: usize = 32;

/// Rows of a batch, sorted by their tokens and cut into segments of one token each.
///
/// A token with one segment is light: the cube of this segment adds to the table at once. The others are heavy: their
/// segments come first, and a second launch adds their sums. So scratch is needed for heavy segments only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Order of the rows, starts of the segments, tokens of the segments, first segments of the heavy tokens: each part
    /// has its largest possible length, so that the length depends on the sizes alone.
    words: Vec<u32>,
    places: Places,
    segments: usize,
    heavy_segments: usize,
    heavy_tokens: usize,
}

/// Starts of the parts of the words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Places {
    starts: usize,
    owners: usize,
    heavy: usize,
    end: usize,
}

impl Places {
    fn of(rows: usize, vocab: usize) -> Self {
        // Each token has at most one segment that is not full.
        let segments = rows / SEGMENT + rows.min(vocab);
        let (starts, owners) = (rows, rows + segments + 1);
        let heavy = owners + segments;
        Self { starts, owners, heavy, end: heavy + rows / SEGMENT + 1 }
    }
}

impl Segments {
    /// Sorts the rows of a batch.
    ///
    /// # Errors
    /// If a token is not below `vocab`.
    pub fn of(tokens: &[u32], vocab: usize) -> Result<Self, String> {
        let mut counts = vec![0usize; vocab];
        for (row, &token) in tokens.iter().enumerate() {
            let count = counts.get_mut(token as usize);
            *count.ok_or_else(|| format!("token {token} of row {row} is not below {vocab}, the vocabulary"))? += 1;
        }
        let places = Places::of(tokens.len(), vocab);
        let mut sorted = Self { words: vec![0; places.end], places, segments: 0, heavy_segments: 0, heavy_tokens: 0 };
        let mut next = vec![0u32; vocab];
        let mut row = 0;
        for heavy in [true, false] {
            let chosen = counts.iter().enumerate().filter(|(_, c)| **c > 0 && (**c > SEGMENT) == heavy);
            for (token, &count) in chosen {
                next[token] = row as u32;
                sorted.cut(token, row, count);
                row += count;
            }
        }
        for (row, &token) in tokens.iter().enumerate() {
            let place = &mut next[token as usize];
            sorted.words[*place as usize] = row as u32;
            *place += 1;
        }
        Ok(sorted)
    }

    /// Adds the segments of a token whose rows start at `first` of the order.
    fn cut(&mut self, token: usize, first: usize, count: usize) {
        let Places { starts, owners, heavy, .. } = self.places;
        for start in (0..count).step_by(SEGMENT) {
            self.words[starts + self.segments] = (first + start) as u32;
            self.words[owners + self.segments] = token as u32;
            self.segments += 1;
        }
        self.words[starts + self.segments] = (first + count) as u32;
        if count > SEGMENT {
            self.heavy_tokens += 1;
            self.heavy_segments = self.segments;
            self.words[heavy + self.heavy_tokens] = self.segments as u32;
        }
    }

    /// The words that the device gets: as many for all batches of these sizes.
    pub fn words(&self) -> &[u32] {
        &self.words
    }
}

/// Bytes of scratch that [`backward`] needs.
pub fn scratch_bytes(rows: usize, width: usize) -> usize {
    // A heavy token has at least one full segment for each one that is not.
    (2 * (rows / SEGMENT)).max(1) * width * size_of::<f32>()
}

/// `x[r] = table[tokens[r]]`: `x` is f32 `[rows, width]`, the table f32 `[vocab, width]`, tokens are u32. The row of a
/// token that is not below `vocab` becomes zero. One launch.
pub fn forward<R: Runtime>(
    client: &ComputeClient<R>,
    tokens: &Handle,
    table: &Handle,
    x: &Handle,
    [rows, vocab, width]: [usize; 3],
    tally: &Handle,
) {
    let n = line(size_of::<f32>(), &[width]);
    let vectors = rows * width / n;
    // SAFETY: the kernel tests its indices, and tokens against the vocabulary.
    unsafe {
        embed_rows::launch_unchecked::<R>(
            client,
            units(client, vectors),
            dim(),
            n,
            array(tokens, rows),
            array(table, vocab * width),
            array(x, rows * width),
            vectors,
            vocab,
            array(tally, 1),
            width / n,
        );
    }
}

/// `gradient[token] += sum of dx[r]` over the rows with this token: `dx` is f32 `[rows, width]`, the gradient f32
/// `[vocab, width]`. `plan` holds the words of `segments`. Two launches.
pub fn backward<R: Runtime>(
    client: &ComputeClient<R>,
    dx: &Handle,
    (segments, plan): (&Segments, &Handle),
    gradient: &Handle,
    scratch: &Handle,
    [rows, vocab, width]: [usize; 3],
    tally: &Handle,
) {
    let n = line(size_of::<f32>(), &[width]);
    let units = CubeDim::new_1d((width / n).next_multiple_of(32).min(256) as u32);
    let Places { starts, owners, heavy, end } = segments.places;
    let scratch_len = scratch_bytes(rows, width) / size_of::<f32>();
    // SAFETY: the plan has rows, segments and tokens within the sizes only, as made by `Segments::of`.
    unsafe {
        embed_segments::launch_unchecked::<R>(
            client,
            cubes(client, segments.segments),
            units,
            n,
            array(dx, rows * width),
            array(plan, end),
            array(scratch, scratch_len),
            array(gradient, vocab * width),
            segments.segments,
            segments.heavy_segments,
            starts,
            owners,
            array(tally, 1),
            width / n,
        );
        embed_heavy::launch_unchecked::<R>(
            client,
            cubes(client, segments.heavy_tokens),
            units,
            n,
            array(plan, end),
            array(scratch, scratch_len),
            array(gradient, vocab * width),
            segments.heavy_tokens,
            owners,
            heavy,
            array(tally, 1),
            width / n,
        );
    }
}

/// Each unit copies one vector. `width` is counted in vectors.
#[cube(launch_unchecked)]
fn embed_rows<N: Size>(
    tokens: &Array<u32>,
    table: &Array<Vector<f32, N>>,
    x: &mut Array<Vector<f32, N>>,
    vectors: usize,
    vocab: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
) {
    count(tally);
    if ABSOLUTE_POS < vectors {
        let token = tokens[ABSOLUTE_POS / width] as usize;
        let mut value = Vector::<f32, N>::new(0.0f32);
        if token < vocab {
            value = table[token * width + ABSOLUTE_POS % width];
        }
        x[ABSOLUTE_POS] = value;
    }
}

/// Each cube sums one segment. `width` is counted in vectors.
#[cube(launch_unchecked)]
fn embed_segments<N: Size>(
    dx: &Array<Vector<f32, N>>,
    plan: &Array<u32>,
    sums: &mut Array<Vector<f32, N>>,
    gradient: &mut Array<Vector<f32, N>>,
    segments: usize,
    heavy: usize,
    starts: usize,
    owners: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
) {
    count(tally);
    let segment = CUBE_POS;
    if segment < segments {
        let first = plan[starts + segment] as usize;
        let end = plan[starts + segment + 1] as usize;
        let owner = plan[owners + segment] as usize;
        for column in range_stepped(UNIT_POS as usize, width, CUBE_DIM as usize) {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for i in first..end {
                sum += dx[plan[i] as usize * width + column];
            }
            if segment < heavy {
                sums[segment * width + column] = sum;
            } else {
                gradient[owner * width + column] += sum;
            }
        }
    }
}

/// Each cube adds up the segments of one heavy token.
#[cube(launch_unchecked)]
fn embed_heavy<N: Size>(
    plan: &Array<u32>,
    sums: &Array<Vector<f32, N>>,
    gradient: &mut Array<Vector<f32, N>>,
    tokens: usize,
    owners: usize,
    firsts: usize,
    tally: &mut Array<Atomic<u32>>,
    #[comptime] width: usize,
) {
    count(tally);
    if CUBE_POS < tokens {
        let first = plan[firsts + CUBE_POS] as usize;
        let end = plan[firsts + CUBE_POS + 1] as usize;
        let owner = plan[owners + first] as usize;
        for column in range_stepped(UNIT_POS as usize, width, CUBE_DIM as usize) {
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for segment in first..end {
                sum += sums[segment * width + column];
            }
            gradient[owner * width + column] += sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::{Trial, close, noise};
    use proptest::prelude::*;

    /// Tokens of which low ones are frequent.
    fn tokens(rows: usize, vocab: usize, seed: u64) -> Vec<u32> {
        noise(rows, seed).iter().map(|x| (((x * x * x).abs() * vocab as f32) as u32).min(vocab as u32 - 1)).collect()
    }

    fn check(rows: usize, vocab: usize, width: usize, seed: u64) {
        let trial = Trial::new();
        let (tokens, size) = (tokens(rows, vocab, seed), [rows, vocab, width]);
        let table = noise(vocab * width, seed + 1);
        let (x, table_arg) = (trial.empty(rows * width), trial.floats(&table));
        forward(&trial.client, &trial.words(&tokens), &table_arg, &x, size, &trial.tally);
        let rows_of = |token: &u32| table[*token as usize * width..][..width].to_vec();
        assert_eq!(trial.read(&x), tokens.iter().flat_map(rows_of).collect::<Vec<_>>());

        let (dx, gradient) = (noise(rows * width, seed + 2), noise(vocab * width, seed + 3));
        let mut want: Vec<f64> = gradient.iter().map(|&g| f64::from(g)).collect();
        for (row, &token) in dx.chunks(width).zip(&tokens) {
            want[token as usize * width..][..width].iter_mut().zip(row).for_each(|(w, &d)| *w += f64::from(d));
        }
        let segments = Segments::of(&tokens, vocab).unwrap();
        assert_eq!(segments.words().len(), Places::of(rows, vocab).end);
        let scratch = trial.empty(scratch_bytes(rows, width) / 4);
        let run = || {
            let (target, plan) = (trial.floats(&gradient), trial.words(segments.words()));
            let dx = trial.floats(&dx);
            backward(&trial.client, &dx, (&segments, &plan), &target, &scratch, size, &trial.tally);
            trial.read(&target)
        };
        let got = run();
        close("gradient", &got, &want, 1e-6);
        assert_eq!(got, run(), "the order of the sums is fixed");
        assert_eq!(trial.ran(), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(8))]

        #[test]
        fn rows_are_gathered_and_summed(
            (rows, vocab, width) in (1usize..900, 2usize..300, 1usize..80),
            seed in 0u64..1 << 60,
        ) {
            check(rows, vocab, width, seed);
        }
    }

    #[test]
    fn usual_sizes_are_right() {
        for (rows, vocab, width) in [(1, 2, 64), (1700, 256, 768), (2000, 2, 96), (100, 1000, 768)] {
            check(rows, vocab, width, 7);
        }
    }

    #[test]
    fn segments_cover_each_row_once() {
        let tokens = [vec![3; 70], vec![1; 32], vec![0, 2, 3, 2]].concat();
        let segments = Segments::of(&tokens, 5).unwrap();
        let mut order = segments.words()[..tokens.len()].to_vec();
        assert_eq!(order[..70], (0..70).collect::<Vec<_>>());
        assert_eq!((segments.segments, segments.heavy_segments, segments.heavy_tokens), (6, 3, 1));
        order.sort_unstable();
        assert_eq!(order, (0..tokens.len() as u32).collect::<Vec<_>>());
        let refused = Segments::of(&[4, 5], 5).unwrap_err();
        assert_eq!(refused, "token 5 of row 1 is not below 5, the vocabulary");
    }
}
