//! Products by cuBLASLt, on cubecl's stream.

use super::columns::{Columns, Stored};
use super::library::{self, Algorithm, Candidate, Library, Raw, Status};
use super::product::{Add, Precision, Product, Shape};
use super::stream::{Server, Stream};
use cubecl::cuda::CudaRuntime;
use cubecl::prelude::*;
use cubecl::server::{ComputeServer, Handle};
use cubecl::stream_id::StreamId;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of memory that an algorithm may use beside the matrices, as NVIDIA advises for Hopper.
pub const WORKSPACE: usize = 32 << 20;

/// The library with its products, and the stream that they go to.
pub struct Cublas {
    session: Arc<Session>,
    stream: Stream,
    plans: Mutex<HashMap<Shape, Arc<Plan>>>,
    /// The failure of a run that did not wait.
    failure: Arc<Mutex<Option<String>>>,
}

impl Cublas {
    /// Finds cubecl's stream and the library, and opens a session of it.
    ///
    /// # Errors
    ///
    /// Words about the first that is missing.
    pub fn open(client: &ComputeClient<CudaRuntime>) -> Result<Self, String> {
        let stream = Stream::find(client)?;
        let mut reasons = Vec::new();
        for place in library::places() {
            let session = match Library::load(&place) {
                Ok(Some(library)) => stream.wait(move |_| Session::open(library))?,
                Ok(None) => continue,
                Err(why) => Err(why),
            };
            match session {
                Ok(session) => {
                    let (plans, failure) = (Mutex::default(), Arc::default());
                    return Ok(Self { session: Arc::new(session), stream, plans, failure });
                }
                // A file may be found by its name and in its folder.
                Err(why) if reasons.contains(&why) => {}
                Err(why) => reasons.push(why),
            }
        }
        if reasons.is_empty() {
            reasons.push(library::none_found());
        }
        Err(reasons.join(", and "))
    }

    pub fn version(&self) -> String {
        self.session.library.version()
    }

    /// Enqueues a product. The first run of a shape waits.
    pub fn run(
        &self,
        (product, shape): (&Product, Shape),
        (a, b, d): (&Handle, &Handle, &Handle),
        scratch: &Handle,
    ) -> Result<(), String> {
        if [a, b, d].into_iter().any(|handle| handle.stream != self.stream.id()) {
            return Err(format!("a matrix of the product {shape} belongs to another stream"));
        }
        if scratch.size_in_used() < WORKSPACE as u64 || !scratch.offset_start.unwrap_or(0).is_multiple_of(256) {
            return Err(format!("the product {shape} needs {WORKSPACE} bytes of scratch memory, aligned to 256"));
        }
        self.failed()?;
        let handles = [b, a, d, scratch].map(Clone::clone);
        let beta = if product.add == Add::Into { 1.0 } else { 0.0 };
        let call = Call { shape, handles, beta, stream: self.stream.raw(), id: self.stream.id() };
        let known = self.plans.lock().unwrap_or_else(PoisonError::into_inner).get(&shape).cloned();
        match known {
            Some(plan) => {
                let failure = self.failure.clone();
                self.stream.send(move |server| {
                    if let Err(why) = call.send(server, &plan) {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
                    }
                });
            }
            None => {
                let session = self.session.clone();
                let plan = self.stream.wait(move |server| {
                    let plan = Plan::choose(session, shape)?;
                    call.send(server, &plan).map(|()| plan)
                })??;
                self.plans.lock().unwrap_or_else(PoisonError::into_inner).insert(shape, Arc::new(plan));
            }
        }
        Ok(())
    }

    /// Waits for the runs, and returns the failure of one.
    pub fn check(&self) -> Result<(), String> {
        self.stream.wait(|_| ())?;
        self.failed()
    }

    fn failed(&self) -> Result<(), String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // The session closes on the device's thread, where its context is current, and after the runs.
        let plans = std::mem::take(self.plans.get_mut().unwrap_or_else(PoisonError::into_inner));
        let session = self.session.clone();
        self.stream.send(move |_| drop((plans, session)));
    }
}

/// An open library.
struct Session {
    library: Library,
    handle: Raw,
}

// SAFETY: the library's functions may be called from any thread; ours are called on the device's thread alone.
unsafe impl Send for Session {}
unsafe impl Sync for Session {}

impl Session {
    fn open(library: Library) -> Result<Self, String> {
        let mut handle = null_mut();
        // SAFETY: the pointer is to a pointer.
        let status = unsafe { (library.create)(&mut handle) };
        if status != 0 {
            return Err(format!("cuBLASLt {} does not open: {}", library.version(), library.words(status)));
        }
        Ok(Self { library, handle })
    }

    fn check(&self, status: Status, call: &str, shape: Shape) -> Result<(), String> {
        match status {
            0 => Ok(()),
            _ => Err(format!("cuBLASLt failed to {call} for the product {shape}: {}", self.library.words(status))),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the handle was created by this library, and is used no more. A failure changes nothing here.
        unsafe { (self.library.destroy)(self.handle) };
    }
}

/// The descriptions of a shape's matrices, and its algorithm.
struct Plan {
    session: Arc<Session>,
    operation: Raw,
    left: Raw,
    right: Raw,
    result: Raw,
    algorithm: Algorithm,
}

// SAFETY: as for the session.
unsafe impl Send for Plan {}
unsafe impl Sync for Plan {}

fn element(precision: Precision) -> c_int {
    match precision {
        Precision::F32 => library::TYPE_F32,
        Precision::Bf16 => library::TYPE_BF16,
    }
}

impl Plan {
    fn choose(session: Arc<Session>, shape: Shape) -> Result<Self, String> {
        let algorithm = Candidate::EMPTY.algorithm;
        let (operation, left, right, result) = (null_mut(), null_mut(), null_mut(), null_mut());
        let mut plan = Self { session, operation, left, right, result, algorithm };
        plan.describe(shape)?;
        let mut preference = null_mut();
        let library = &plan.session.library;
        // SAFETY: the pointer is to a pointer.
        let created = unsafe { (library.preference_create)(&mut preference) };
        plan.session.check(created, "describe its choice", shape)?;
        let candidate = plan.candidate(preference, shape);
        // SAFETY: the object was created above.
        unsafe { (library.preference_destroy)(preference) };
        plan.algorithm = candidate?.algorithm;
        Ok(plan)
    }

    /// Creates the descriptions.
    fn describe(&mut self, shape: Shape) -> Result<(), String> {
        let session = &self.session;
        let library = &session.library;
        let columns = Columns::of(shape.form, shape.m, shape.n, shape.k);
        // SAFETY: the pointers are to pointers, and to numbers of the sizes given.
        unsafe {
            let created = (library.operation_create)(&mut self.operation, library::COMPUTE_F32, library::TYPE_F32);
            session.check(created, "describe the operation", shape)?;
            for (attribute, stored) in
                [(library::TRANSPOSE_LEFT, columns.left), (library::TRANSPOSE_RIGHT, columns.right)]
            {
                let value = if stored.transposed { library::TRANSPOSED } else { library::AS_STORED };
                let value = (&raw const value).cast::<c_void>();
                let set = (library.operation_set)(self.operation, attribute, value, size_of::<i32>());
                session.check(set, "transpose a matrix", shape)?;
            }
            let layout = |raw: &mut Raw, precision, stored: Stored| {
                let (rows, columns) = (stored.rows as u64, stored.columns as u64);
                let created = (library.layout_create)(raw, element(precision), rows, columns, rows as i64);
                session.check(created, "describe a matrix", shape)?;
                let (count, distance) = (shape.count as i32, (rows * columns) as i64);
                let value = (&raw const count).cast::<c_void>();
                let set = (library.layout_set)(*raw, library::MATRICES, value, size_of::<i32>());
                session.check(set, "count its matrices", shape)?;
                let value = (&raw const distance).cast::<c_void>();
                let set = (library.layout_set)(*raw, library::DISTANCE, value, size_of::<i64>());
                session.check(set, "place its matrices", shape)
            };
            layout(&mut self.left, shape.input, columns.left)?;
            layout(&mut self.right, shape.input, columns.right)?;
            layout(&mut self.result, shape.output, columns.result)
        }
    }

    /// The library's first choice among the algorithms that sum in a fixed order and in f32.
    fn candidate(&self, preference: Raw, shape: Shape) -> Result<Candidate, String> {
        let Self { session, operation, left, right, result, .. } = self;
        let library = &session.library;
        let (workspace, reductions) = (WORKSPACE as u64, library::REDUCTION_IN_COMPUTE_TYPE);
        let (mut candidates, mut count) = ([Candidate::EMPTY; 4], 0);
        // SAFETY: the pointers are to numbers of the sizes given, and to as many candidates as are asked for.
        unsafe {
            let value = (&raw const workspace).cast::<c_void>();
            let set = (library.preference_set)(preference, library::MOST_WORKSPACE, value, size_of::<u64>());
            session.check(set, "limit its memory", shape)?;
            let value = (&raw const reductions).cast::<c_void>();
            let set = (library.preference_set)(preference, library::REDUCTIONS, value, size_of::<u32>());
            session.check(set, "limit its reductions", shape)?;
            let (most, first) = (candidates.len() as c_int, candidates.as_mut_ptr());
            let chosen = (library.choose)(
                session.handle,
                *operation,
                *left,
                *right,
                *result,
                *result,
                preference,
                most,
                first,
                &mut count,
            );
            session.check(chosen, "choose an algorithm", shape)?;
        }
        let count = usize::try_from(count).unwrap_or(0);
        let found = candidates.iter().take(count).find(|c| c.state == 0 && c.workspace <= WORKSPACE);
        found.copied().ok_or_else(|| format!("cuBLASLt has no algorithm for the product {shape}"))
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        let library = &self.session.library;
        // SAFETY: each object that is not null was created by this library. A failure changes nothing here.
        unsafe {
            for layout in [self.left, self.right, self.result] {
                if !layout.is_null() {
                    (library.layout_destroy)(layout);
                }
            }
            if !self.operation.is_null() {
                (library.operation_destroy)(self.operation);
            }
        }
    }
}

/// One product.
struct Call {
    shape: Shape,
    /// The left and right matrix, the result, and the workspace.
    handles: [Handle; 4],
    beta: f32,
    stream: usize,
    id: StreamId,
}

impl Call {
    /// Enqueues the product, on the device's thread.
    fn send(self, server: &mut Server, plan: &Plan) -> Result<(), String> {
        let Self { shape, handles, beta, stream, id } = self;
        let mut pointers = [null_mut(); 4];
        for (pointer, handle) in pointers.iter_mut().zip(handles) {
            // cubecl makes its context current here. The memory outlives the call, because what frees it is enqueued after.
            let resource = server.get_resource(handle.binding(), id);
            let resource = resource.map_err(|e| format!("a matrix of the product {shape} has no memory: {e:?}"))?;
            *pointer = resource.resource().ptr as Raw;
        }
        if pointers.iter().any(|pointer| pointer.is_null() || !pointer.addr().is_multiple_of(256)) {
            return Err(format!("a matrix of the product {shape} is not aligned to 256 bytes"));
        }
        let Plan { session, operation, left, right, result, algorithm } = plan;
        let [l, r, d, workspace] = pointers;
        let alpha = 1.0f32;
        let (alpha, beta) = ((&raw const alpha).cast::<c_void>(), (&raw const beta).cast::<c_void>());
        // SAFETY: the descriptions are those of the matrices, whose sizes were checked; the factors are f32 as described.
        let status = unsafe {
            (session.library.multiply)(
                session.handle,
                *operation,
                alpha,
                l,
                *left,
                r,
                *right,
                beta,
                d,
                *result,
                d,
                *result,
                algorithm,
                workspace,
                WORKSPACE,
                stream as Raw,
            )
        };
        session.check(status, "multiply", shape)
    }
}
