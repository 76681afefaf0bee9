//! A file of residuals: its owner, the COMMIT after which it is true, and the values.
//!
//! `layout (8) ‖ run (32) ‖ node (32) ‖ fragment, fragments, elements (u64 each) ‖ lineage (32) ‖ seq (u64) ‖ set (32) ‖
//! chunks of sums (u64) ‖ own (f32 each) ‖ for each chunk of sums, ascending: chunk (u64), left (f32 each)`, all
//! little-endian, in the store's sealed form. Each field is compared with the run's specification before memory is
//! taken for it.

use crate::reduce::feedback::residuals::Held;
use crate::reduce::passed::Mark;
use starling_protocol::{Digest, NodeId, update};
use starling_store::{PrivateReader, PrivateWriter, StoreError};
use std::collections::BTreeMap;

/// The last byte is the layout's version.
const LAYOUT: [u8; 8] = *b"RESIDUE1";
/// Bytes before the values.
const HEADER_BYTES: usize = 8 + 32 + 32 + 3 * 8 + 32 + 8 + 32 + 8;
/// The prefix of all names of residuals, also in earlier layouts.
pub(in crate::reduce) const PREFIX: &str = "residuals";

/// The node and the fragment that a file's residuals belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reduce) struct Label {
    pub run: Digest,
    pub node: NodeId,
    pub fragment: usize,
    /// Fragments of the run.
    pub fragments: usize,
    /// Elements of this one.
    pub elements: usize,
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub(in crate::reduce) enum Unfit {
    #[error("it is of another layout than this program writes")]
    Layout,
    #[error("it is of another {0}")]
    Foreign(&'static str),
    #[error("its {0} cannot be")]
    Malformed(&'static str),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Unfit {
    /// The label of `starling_residuals_lost_total`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Layout => "layout",
            Self::Foreign(_) => "foreign",
            Self::Malformed(_) | Self::Store(_) => "damaged",
        }
    }
}

impl Label {
    /// Names of this fragment's two files.
    pub fn names(&self) -> [String; 2] {
        ["a", "b"].map(|place| format!("{PREFIX}-{}-{place}", self.fragment))
    }

    fn numbers(&self) -> [(&'static str, u64); 3] {
        let Self { fragment, fragments, elements, .. } = *self;
        [("fragment", fragment as u64), ("number of fragments", fragments as u64), ("size", elements as u64)]
    }

    /// Bytes of a file with these chunks of sums.
    pub fn bytes(&self, sums: &[usize]) -> u64 {
        let lengths = sums.iter().map(|chunk| 8 + 4 * update::chunk_elements(self.elements, *chunk).len());
        (HEADER_BYTES + 4 * self.elements + lengths.sum::<usize>()) as u64
    }

    /// Writes the header.
    pub fn begin(&self, file: &mut PrivateWriter<'_>, mark: &Mark, sums: &[usize]) -> Result<(), StoreError> {
        file.write(&LAYOUT)?;
        file.write(&self.run.0)?;
        file.write(&self.node.0)?;
        self.numbers().iter().try_for_each(|(_, number)| file.write(&number.to_le_bytes()))?;
        file.write(&mark.lineage.0)?;
        file.write(&mark.seq.to_le_bytes())?;
        file.write(&mark.set.0)?;
        file.write(&(sums.len() as u64).to_le_bytes())
    }

    /// The COMMIT after which a file claims to be true; only [`Label::read`] tells whether it is whole.
    pub fn mark(&self, mut file: PrivateReader) -> Result<Mark, Unfit> {
        self.read_header(&mut file).map(|(mark, _)| mark)
    }

    /// The mark, and the number of chunks of sums.
    fn read_header(&self, file: &mut PrivateReader) -> Result<(Mark, u64), Unfit> {
        if file.remaining() < HEADER_BYTES as u64 || read::<8>(file)? != LAYOUT {
            return Err(Unfit::Layout);
        }
        if read(file)? != self.run.0 {
            return Err(Unfit::Foreign("run"));
        }
        if read(file)? != self.node.0 {
            return Err(Unfit::Foreign("node"));
        }
        for (what, number) in self.numbers() {
            if read_number(file)? != number {
                return Err(Unfit::Foreign(what));
            }
        }
        let mark = Mark { lineage: Digest(read(file)?), seq: read_number(file)?, set: Digest(read(file)?) };
        let chunks = read_number(file)?;
        if chunks > update::chunks(self.elements) as u64 {
            return Err(Unfit::Malformed("number of chunks"));
        }
        if file.remaining() < 4 * self.elements as u64 + 8 * chunks {
            return Err(Unfit::Malformed("length"));
        }
        Ok((mark, chunks))
    }

    /// Reads a whole file.
    pub fn read(&self, mut file: PrivateReader) -> Result<Held, Unfit> {
        let (mark, count) = self.read_header(&mut file)?;
        let chunks = update::chunks(self.elements);
        let own = read_values(&mut file, self.elements)?;
        let mut sums = BTreeMap::new();
        for _ in 0..count {
            let chunk = usize::try_from(read_number(&mut file)?).unwrap_or(usize::MAX);
            let follows = sums.last_key_value().is_none_or(|(last, _)| chunk > *last);
            if chunk >= chunks || !follows {
                return Err(Unfit::Malformed("order of chunks"));
            }
            sums.insert(chunk, read_values(&mut file, update::chunk_elements(self.elements, chunk).len())?);
        }
        file.finish()?;
        Ok(Held { mark, own, sums })
    }
}

fn read<const N: usize>(file: &mut PrivateReader) -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    file.read(&mut bytes)?;
    Ok(bytes)
}

fn read_number(file: &mut PrivateReader) -> Result<u64, StoreError> {
    read(file).map(u64::from_le_bytes)
}

fn read_values(file: &mut PrivateReader, count: usize) -> Result<Vec<f32>, Unfit> {
    let mut values = vec![0.0; count];
    file.read_f32s(&mut values)?;
    // A residual that is not a number cannot be sent, and would stay for good.
    if values.iter().all(|x: &f32| x.is_finite()) { Ok(values) } else { Err(Unfit::Malformed("values")) }
}
