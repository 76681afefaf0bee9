//! The description of a matrix product, and the checks that come before any launch.

use cubecl::server::Handle;

/// The element type of activations and of the parameters that products read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    F32,
    Bf16,
}

impl Precision {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// The three products of a linear layer `y = x W^T`. All matrices are dense and row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `D[m,n] = A[m,k] B[n,k]^T`: `y = x W^T`.
    Forward,
    /// `D[m,n] = A[m,k] B[k,n]`: `dx = dy W`.
    Input,
    /// `D[m,n] = A[k,m]^T B[k,n]`: `dW = dy^T x`.
    Weight,
}

/// The element type of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// The type of activations.
    Activation,
    /// f32.
    Float,
}

/// The term beside the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Add {
    /// `D = product`.
    None,
    /// `D = product + D`.
    Into,
}

/// `count` products `D[m,n]` of an inner dimension `k`. The matrices of each operand follow each other without gaps.
#[derive(Clone, Debug)]
pub struct Product {
    pub form: Form,
    pub count: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub output: Output,
    pub add: Add,
}

/// The part of a product that decides about the algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub form: Form,
    pub count: usize,
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// The element type of `A` and `B`.
    pub input: Precision,
    /// The element type of the result.
    pub output: Precision,
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { form, count, m, n, k, input, output } = self;
        let times = if *count == 1 { String::new() } else { format!("{count} times ") };
        write!(f, "{times}{form:?} [{m}, {n}] of inner dimension {k}, {input:?} to {output:?}")
    }
}

impl Product {
    pub(crate) fn shape(&self, input: Precision) -> Shape {
        let output = match self.output {
            Output::Activation => input,
            Output::Float => Precision::F32,
        };
        Shape { form: self.form, count: self.count, m: self.m, n: self.n, k: self.k, input, output }
    }

    /// Refuses empty products, products whose elements a u32 does not count, handles that are too small, and parts that do
    /// not begin at a multiple of 256 bytes.
    pub(crate) fn check(&self, input: Precision, a: &Handle, b: &Handle, d: &Handle) -> Result<Shape, String> {
        let shape = self.shape(input);
        let (m, n, k) = (self.m, self.n, self.k);
        let elements = |(rows, columns): (usize, usize)| self.count.saturating_mul(rows).saturating_mul(columns);
        let counts = [(m, k), (n, k), (m, n)].map(elements);
        if counts.contains(&0) || counts.iter().any(|count| *count > u32::MAX as usize) {
            return Err(format!("the product {shape} is empty or too large"));
        }
        let of_d = counts[2] * shape.output.bytes();
        let parts = [("A", a, counts[0] * input.bytes()), ("B", b, counts[1] * input.bytes()), ("D", d, of_d)];
        for (name, handle, bytes) in parts {
            let (has, begin) = (handle.size_in_used(), handle.offset_start.unwrap_or(0));
            if has < bytes as u64 {
                return Err(format!("{name} has {has} bytes and the product {shape} needs {bytes}"));
            }
            if !begin.is_multiple_of(256) {
                return Err(format!("{name} of the product {shape} begins at byte {begin}, which 256 does not divide"));
            }
        }
        Ok(shape)
    }
}
