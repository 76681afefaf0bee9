//! The way of vectors to a device and back: in pinned memory where the device is CUDA's and gives some, else as its runtime
//! copies them.

use crate::fill;
use crate::launches::Tally;
#[cfg(feature = "cuda")]
use crate::pinned::{Piece, Pinned};
use crate::transfer::{Places, floats};
use cubecl::prelude::*;
use cubecl::server::Handle;

/// Brings vectors to a device and back.
pub struct Carrier {
    places: Places,
    #[cfg(feature = "cuda")]
    pinned: Option<Pinned>,
}

impl Carrier {
    /// The carrier between vectors of these places, and words for a person where a device of CUDA has a slow one.
    pub fn open<R: Runtime>(client: &ComputeClient<R>, places: Places) -> (Self, Option<String>) {
        #[cfg(feature = "cuda")]
        if let Some(client) = (client as &dyn std::any::Any).downcast_ref::<ComputeClient<cubecl::cuda::CudaRuntime>>()
        {
            return match Pinned::open(client) {
                Ok(pinned) => (Self { places, pinned: Some(pinned) }, None),
                Err(why) => (Self { places, pinned: None }, Some(format!("slow transfers, because {why}"))),
            };
        }
        let _ = client;
        let carrier = Self {
            places,
            #[cfg(feature = "cuda")]
            pinned: None,
        };
        (carrier, None)
    }

    /// Enqueues a copy of the host's vector to `target`, f32 in the device's layout; its padding becomes zero.
    ///
    /// # Errors
    /// The device's words.
    pub fn write<R: Runtime>(
        &mut self,
        client: &ComputeClient<R>,
        values: &[f32],
        target: &Handle,
        tally: &Tally,
    ) -> Result<(), String> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.write(target, values, &Piece::whole(&self.places));
        }
        self.places.write(client, values, target, tally);
        Ok(())
    }

    /// Copies `source`, f32 in the device's layout, to the host's vector.
    ///
    /// # Errors
    /// The device's words.
    pub fn read<R: Runtime>(
        &mut self,
        client: &ComputeClient<R>,
        source: &Handle,
        values: &mut [f32],
    ) -> Result<(), String> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.read(source, values, &Piece::whole(&self.places));
        }
        self.places.read(client, source, values)
    }

    /// Enqueues a copy of the host's numbers from its place `start` on to `target`, f32 in the device's layout.
    ///
    /// # Errors
    /// The device's words.
    pub fn write_some<R: Runtime>(
        &mut self,
        client: &ComputeClient<R>,
        (start, values): (usize, &[f32]),
        target: &Handle,
        tally: &Tally,
    ) -> Result<(), String> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.write(target, values, &Piece::some(&self.places, start, values.len()));
        }
        for (device, part) in self.places.parts(start, values.len()) {
            let source = client.create_from_slice(bytemuck::cast_slice(&values[part]));
            fill::copy::<R, f32>(client, (&source, 0), (target, device.start), device.len(), tally.of(1));
        }
        Ok(())
    }

    /// Copies numbers of `source`, f32 in the device's layout, to the host's from its place `start` on.
    ///
    /// # Errors
    /// The device's words.
    pub fn read_some<R: Runtime>(
        &mut self,
        client: &ComputeClient<R>,
        source: &Handle,
        (start, out): (usize, &mut [f32]),
    ) -> Result<(), String> {
        #[cfg(feature = "cuda")]
        if let Some(pinned) = &mut self.pinned {
            return pinned.read(source, out, &Piece::some(&self.places, start, out.len()));
        }
        for (device, part) in self.places.parts(start, out.len()) {
            let bytes = floats(client, source, self.places.elements, device)?;
            out[part].copy_from_slice(bytemuck::cast_slice(&bytes));
        }
        Ok(())
    }
}
