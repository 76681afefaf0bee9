//! The matrix products of a transformer's trainer on devices.

mod addition;
mod columns;
#[cfg(feature = "cuda")]
mod cublas;
mod engine;
#[cfg(feature = "cuda")]
mod library;
mod portable;
mod product;
mod samples;
#[cfg(feature = "cuda")]
mod stream;

#[cfg(all(test, feature = "cuda"))]
mod cuda_test;
#[cfg(test)]
mod portable_test;

pub use engine::Products;
pub use product::{Add, Form, Output, Precision, Product};
#[cfg(feature = "cuda")]
pub use stream::Stream;

/// Bytes of scratch memory for any of the products, one at a time, by cuBLASLt or by cubek.
pub fn scratch(products: &[Product], cublas: bool) -> usize {
    let by_cubek = products.iter().map(portable::Portable::scratch_bytes).max().unwrap_or(0);
    // A device without the library falls back to cubek.
    #[cfg(feature = "cuda")]
    if cublas {
        return by_cubek.max(cublas::WORKSPACE);
    }
    let _ = cublas;
    by_cubek
}
