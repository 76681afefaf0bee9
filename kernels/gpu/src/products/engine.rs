//! The matrix products of a trainer, by the fastest library that the device has.

#[cfg(feature = "cuda")]
use super::cublas::Cublas;
use super::portable::Portable;
use super::product::{Add, Precision, Product};
use cubecl::prelude::*;
use cubecl::server::Handle;
use std::marker::PhantomData;

/// One sentence about the library that multiplies, and about why it is not a faster one.
pub type Told = String;

enum Engine {
    Portable(Portable),
    #[cfg(feature = "cuda")]
    Cublas(Cublas),
}

/// The products of one device, with the algorithm that was found for each shape.
pub struct Products<R: Runtime> {
    precision: Precision,
    engine: Engine,
    runtime: PhantomData<fn() -> R>,
}

impl<R: Runtime> Products<R> {
    /// Finds the library of the device: cuBLASLt on CUDA where it is installed, cubek elsewhere. `precision` is the type
    /// of activations.
    ///
    /// All runs, and all launches that use their results, go to the stream that `client` has here: its own one where
    /// `set_stream` fixed it, else that of the calling thread.
    pub fn open(client: &ComputeClient<R>, precision: Precision) -> (Self, Told) {
        #[cfg(feature = "cuda")]
        if let Some(client) = (client as &dyn std::any::Any).downcast_ref::<ComputeClient<cubecl::cuda::CudaRuntime>>()
        {
            return match Cublas::open(client) {
                Ok(cublas) => {
                    let told = format!("products by cuBLASLt {}", cublas.version());
                    (Self { precision, engine: Engine::Cublas(cublas), runtime: PhantomData }, told)
                }
                Err(why) => (Self::open_portable(precision), format!("products by cubek, because {why}")),
            };
        }
        let _ = client;
        (Self::open_portable(precision), "products by cubek".to_string())
    }

    /// Products by cubek, on any device.
    pub fn open_portable(precision: Precision) -> Self {
        Self { precision, engine: Engine::Portable(Portable::default()), runtime: PhantomData }
    }

    /// How many launches of a run the tally counts. The kernels of cubek and cuBLASLt do not count.
    pub fn launches(&self, product: &Product) -> u32 {
        match (&self.engine, &product.add) {
            (Engine::Portable(_), Add::Into) => 1,
            _ => 0,
        }
    }

    /// Enqueues a product, in the order of the client's launches. `a`, `b` and `d` are the matrices of [`Product::form`];
    /// parts begin at multiples of 256 bytes. `a` and `b` are of the type of activations. `scratch` has
    /// the bytes of [`super::scratch`]; the launches of a client may share it.
    ///
    /// The first run of a shape chooses its algorithm and waits for the device; later ones do not wait.
    ///
    /// # Errors
    ///
    /// Handles that are too small; a shape that no algorithm computes; a failure of the library, which may be that of an
    /// earlier run.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        client: &ComputeClient<R>,
        product: &Product,
        a: &Handle,
        b: &Handle,
        d: &Handle,
        scratch: &Handle,
        tally: &Handle,
    ) -> Result<(), String> {
        let shape = product.check(self.precision, a, b, d)?;
        match &self.engine {
            Engine::Portable(portable) => portable.run(client, (product, shape), (a, b, d), scratch, tally),
            #[cfg(feature = "cuda")]
            Engine::Cublas(cublas) => cublas.run((product, shape), (a, b, d), scratch),
        }
    }

    /// Waits until all runs are with the device, and returns the failure of one that was not returned yet.
    ///
    /// # Errors
    ///
    /// The library's words.
    pub fn check(&self) -> Result<(), String> {
        match &self.engine {
            Engine::Portable(_) => Ok(()),
            #[cfg(feature = "cuda")]
            Engine::Cublas(cublas) => cublas.check(),
        }
    }
}
