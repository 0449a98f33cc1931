//! Steps, split calls and leases: what lives shorter than an engine.
use crate::engine::Engine;
use crate::error::{check, text, Code, Error, Result};
use crate::source::Part;
use moert_sys as sys;
use std::collections::HashSet;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::{Mutex, MutexGuard};
use std::{ptr, slice};

/// Resident-forward prediction: (layer, partial, next_input). `partial`, rows x the layer's hidden
/// size, is its output as far as its experts were present; fill `next_input`, rows x the next
/// layer's, with what that layer's input would be if this were all. False: cannot tell.
pub type PredictNext = Box<dyn Fn(i32, &[f32], &mut [f32]) -> bool + Send + Sync>;

/// Further options of a step.
#[derive(Default)]
pub struct StepOptions<'a> {
    /// One a row.
    pub request_ids: Option<&'a [i64]>,
    pub predict_next: Option<PredictNext>,
}

/// The arguments of `predict_next` of the C API.
pub(crate) struct Predictor {
    pub predict: PredictNext,
}

pub(crate) unsafe extern "C" fn predict_next(
    user_data: *mut c_void,
    layer: i32,
    partial: *const sys::moert_tensor,
    next_input: *const sys::moert_tensor,
) -> sys::moert_code {
    let predictor = unsafe { &*(user_data as *const Predictor) };
    let elements = |t: &sys::moert_tensor| (t.rows * t.cols) as usize;
    let answer = catch_unwind(AssertUnwindSafe(|| unsafe {
        let (from, to) = (&*partial, &*next_input);
        let from = slice::from_raw_parts(from.data as *const f32, elements(from));
        let to = slice::from_raw_parts_mut(to.data as *mut f32, elements(to));
        (predictor.predict)(layer, from, to)
    }));
    match answer {
        Ok(true) => sys::MOERT_OK,
        Ok(false) => sys::MOERT_UNAVAILABLE,
        Err(_) => sys::MOERT_INTERNAL,
    }
}

/// One pass over all MoE layers. If it is dropped without `end`, its errors are lost.
pub struct Step<'engine> {
    pub(crate) handle: *mut sys::moert_step,
    pub(crate) rows: i64,
    // Freed after the step that points to it.
    predictor: Option<Box<Predictor>>,
    pub(crate) engine: &'engine Engine,
    // Layers with live slots: C releases all slots of a layer at once.
    fetched: Mutex<HashSet<i32>>,
}

// Layer calls and cancel are thread-safe; ending takes the step by value.
unsafe impl Send for Step<'_> {}
unsafe impl Sync for Step<'_> {}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_step_end(self.handle, ptr::null_mut()) };
    }
}

/// Scores of a router of the host's own, for policies that read them; empty: none.
#[derive(Debug, Default, Clone, Copy)]
pub struct Scores<'a> {
    /// rows x experts of the layer.
    pub all: &'a [f32],
    /// rows x experts of the layer behind it (of the first behind the last): predicted.
    pub next: &'a [f32],
}

fn invalid(origin: &str, message: String) -> Error {
    Error { code: Code::InvalidArgument, origin: origin.into(), message }
}

/// fp32 or expert ids, contiguous, in host memory.
pub(crate) fn tensor<T>(
    data: *const T,
    rows: i64,
    cols: i64,
    dtype: sys::moert_dtype,
) -> sys::moert_tensor {
    let mut tensor: sys::moert_tensor = unsafe { std::mem::zeroed() };
    unsafe { sys::moert_tensor_init(&mut tensor, data as *mut c_void, rows, cols, dtype) };
    tensor
}

impl<'engine> Step<'engine> {
    pub(crate) fn new(
        handle: *mut sys::moert_step,
        rows: i64,
        predictor: Option<Box<Predictor>>,
        engine: &'engine Engine,
    ) -> Step<'engine> {
        Step { handle, rows, predictor, engine, fetched: Mutex::default() }
    }

    pub(crate) fn fetched(&self) -> MutexGuard<'_, HashSet<i32>> {
        self.fetched.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Both as tensors. The library checks their shapes against the layer; that the slices are as
    /// long as these shapes say is checked here.
    fn tensors(
        &self,
        origin: &str,
        hidden: &[f32],
        out: *mut f32,
        out_len: usize,
    ) -> Result<(sys::moert_tensor, sys::moert_tensor)> {
        let count = hidden.len();
        if count == 0 || count != out_len || count as i64 % self.rows != 0 {
            return Err(invalid(
                origin,
                format!(
                    "hidden has {count} elements, out {out_len}, for a step of {} rows",
                    self.rows
                ),
            ));
        }
        let cols = count as i64 / self.rows;
        Ok((
            tensor(hidden.as_ptr(), self.rows, cols, sys::MOERT_F32),
            tensor(out, self.rows, cols, sys::MOERT_F32),
        ))
    }

    /// hidden, out: rows x the layer's hidden size, contiguous.
    pub fn forward(&self, layer: i32, hidden: &[f32], out: &mut [f32]) -> Result<()> {
        let (x, y) = self.tensors("Step::forward", hidden, out.as_mut_ptr(), out.len())?;
        check(|e| unsafe { sys::moert_layer_forward(self.handle, layer, &x, ptr::null(), &y, e) })
    }

    /// With the host's routing. ids, weights: rows x top_k. Returns the experts really used, in the
    /// same shape: a lossy strategy may replace some.
    pub fn forward_routed(
        &self,
        layer: i32,
        hidden: &[f32],
        ids: &[i32],
        weights: &[f32],
        out: &mut [f32],
    ) -> Result<Vec<i32>> {
        self.forward_scored(layer, hidden, ids, weights, Scores::default(), out)
    }

    /// The same for strategies that predict or choose by scores: fate, importance.
    pub fn forward_scored(
        &self,
        layer: i32,
        hidden: &[f32],
        ids: &[i32],
        weights: &[f32],
        scores: Scores<'_>,
        out: &mut [f32],
    ) -> Result<Vec<i32>> {
        let (x, y) = self.tensors("Step::forward_scored", hidden, out.as_mut_ptr(), out.len())?;
        let (mut routing, used) = self.routing("Step::forward_scored", ids, weights)?;
        let of = |values: &[f32], tensor_of: &mut sys::moert_tensor| {
            if values.len() as i64 % self.rows != 0 {
                let text = format!("{} scores for {} rows", values.len(), self.rows);
                return Err(invalid("Step::forward_scored", text));
            }
            if !values.is_empty() {
                let cols = values.len() as i64 / self.rows;
                *tensor_of = tensor(values.as_ptr(), self.rows, cols, sys::MOERT_F32);
            }
            Ok(())
        };
        of(scores.all, &mut routing.scores)?;
        of(scores.next, &mut routing.next_scores)?;
        check(|e| unsafe { sys::moert_layer_forward(self.handle, layer, &x, &routing, &y, e) })?;
        Ok(used)
    }

    /// Under `Clock::Simulation`: the layer call of this routing takes its logical time, and nothing is
    /// computed. ids, weights: rows x top_k. Returns the experts that would be used.
    pub fn simulate(&self, layer: i32, ids: &[i32], weights: &[f32]) -> Result<Vec<i32>> {
        let (routing, used) = self.routing("Step::simulate", ids, weights)?;
        let none = ptr::null();
        check(|e| unsafe {
            sys::moert_layer_forward(self.handle, layer, none, &routing, none, e)
        })?;
        Ok(used)
    }

    /// The host's routing, and where the library will write the experts it used.
    fn routing(
        &self,
        origin: &str,
        ids: &[i32],
        weights: &[f32],
    ) -> Result<(sys::moert_routing, Vec<i32>)> {
        if ids.is_empty() || ids.len() != weights.len() || ids.len() as i64 % self.rows != 0 {
            return Err(invalid(
                origin,
                format!("{} ids and {} weights for {} rows", ids.len(), weights.len(), self.rows),
            ));
        }
        let k = ids.len() as i64 / self.rows;
        let mut used = vec![-1; ids.len()];
        let mut routing: sys::moert_routing = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&routing) as u64;
        unsafe { sys::moert_routing_init(&mut routing, size) };
        routing.ids = tensor(ids.as_ptr(), self.rows, k, sys::MOERT_I32);
        routing.weights = tensor(weights.as_ptr(), self.rows, k, sys::MOERT_F32);
        // A vector's elements stay where they are when it is moved.
        routing.used_ids = tensor(used.as_mut_ptr(), self.rows, k, sys::MOERT_I32);
        Ok((routing, used))
    }

    /// Starts a layer call and returns; the buffers are the call's until `Call::finish` gives them
    /// back. (Owned, because a forgotten call goes on writing.)
    pub fn begin_forward(&self, layer: i32, hidden: Vec<f32>, out: Vec<f32>) -> Result<Call<'_>> {
        let mut buffers = Box::new((hidden, out));
        let (hidden, out) = &mut *buffers;
        let (x, y) = self.tensors("Step::begin_forward", hidden, out.as_mut_ptr(), out.len())?;
        let mut handle = ptr::null_mut();
        check(|e| unsafe {
            sys::moert_layer_begin(
                self.handle,
                layer,
                &x,
                ptr::null(),
                &y,
                ptr::null(),
                &mut handle,
                e,
            )
        })?;
        Ok(Call { handle, buffers: Some(buffers), step: PhantomData })
    }

    /// From any thread: the layer call in progress, and later ones, return `Code::Cancelled`.
    pub fn cancel(&self) -> Result<()> {
        check(|e| unsafe { sys::moert_step_cancel(self.handle, e) })
    }

    /// Loads and pins experts for as long as the lease lives, at most as long as the step.
    pub fn lease(&self, layer: i32, experts: &[i32]) -> Result<Lease<'_>> {
        let mut handle = ptr::null_mut();
        check(|e| unsafe {
            sys::moert_lease_acquire(
                self.handle,
                layer,
                experts.as_ptr(),
                experts.len() as i64,
                &mut handle,
                e,
            )
        })?;
        Ok(Lease { handle, step: PhantomData })
    }

    pub fn end(mut self) -> Result<()> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        let predictor = self.predictor.take();
        let result = check(|e| unsafe { sys::moert_step_end(handle, e) });
        drop(predictor);
        result
    }
}

/// A layer call under way. Dropping it waits.
pub struct Call<'step> {
    handle: *mut sys::moert_call,
    buffers: Option<Box<(Vec<f32>, Vec<f32>)>>,
    step: PhantomData<&'step ()>,
}

unsafe impl Send for Call<'_> {}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_layer_finish(self.handle, ptr::null_mut()) };
    }
}

impl Call<'_> {
    /// True: `finish` will not wait.
    pub fn done(&self) -> bool {
        unsafe { sys::moert_call_done(self.handle) != 0 }
    }

    /// Waits; gives back hidden and out.
    pub fn finish(mut self) -> Result<(Vec<f32>, Vec<f32>)> {
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        check(|e| unsafe { sys::moert_layer_finish(handle, e) })?;
        Ok(*self.buffers.take().expect("finished once"))
    }
}

/// Where a projection lies in a record (docs/reference/layout.md).
#[derive(Clone, Debug)]
pub struct Matrix {
    pub scheme: String,
    pub rows: i64,
    pub k: i64,
    pub padded_rows: i64,
    pub padded_k: i64,
    pub group: i64,
    pub weights: std::ops::Range<usize>,
    pub scales: std::ops::Range<usize>,
}

/// Experts pinned where they lie.
pub struct Lease<'step> {
    handle: *mut sys::moert_lease,
    step: PhantomData<&'step ()>,
}

// The bytes that it shows are not written while it lives.
unsafe impl Send for Lease<'_> {}
unsafe impl Sync for Lease<'_> {}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_lease_release(self.handle) }
    }
}

impl Lease<'_> {
    fn view(&self, index: i64) -> Result<sys::moert_expert_view> {
        let mut view: sys::moert_expert_view = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&view) as u64;
        unsafe { sys::moert_expert_view_init(&mut view, size) };
        check(|e| unsafe { sys::moert_lease_view(self.handle, index, &mut view, e) })?;
        Ok(view)
    }

    /// The record of the i-th leased expert, in place.
    pub fn record(&self, index: i64) -> Result<&[u8]> {
        let view = self.view(index)?;
        // Host memory (this crate's engines are on the CPU), pinned while the lease lives.
        Ok(unsafe { std::slice::from_raw_parts(view.record as *const u8, view.bytes as usize) })
    }

    /// Where a projection lies in that record.
    pub fn matrix(&self, index: i64, part: Part) -> Result<Matrix> {
        let view = self.view(index)?;
        let m = match part {
            Part::UpProj => &view.up,
            Part::DownProj => &view.down,
            _ => &view.gate,
        };
        let range = |offset: i64, bytes: i64| offset as usize..(offset + bytes) as usize;
        Ok(Matrix {
            scheme: text(m.scheme),
            rows: m.rows,
            k: m.k,
            padded_rows: m.padded_rows,
            padded_k: m.padded_k,
            group: m.group,
            weights: range(m.weight_offset, m.weight_bytes),
            scales: range(m.scale_offset, m.scale_bytes),
        })
    }

    /// A projection of the i-th leased expert, row-major and widened: (rows, columns, weights).
    pub fn read(&self, index: i64, part: Part) -> Result<(i64, i64, Vec<f32>)> {
        let matrix = self.matrix(index, part)?;
        let part = match part {
            Part::UpProj => sys::MOERT_PART_UP_PROJ,
            Part::DownProj => sys::MOERT_PART_DOWN_PROJ,
            _ => sys::MOERT_PART_GATE_PROJ,
        };
        let mut weights = vec![0.0; (matrix.rows * matrix.k) as usize];
        check(|e| unsafe {
            sys::moert_lease_read(
                self.handle,
                index,
                part,
                weights.as_mut_ptr(),
                weights.len() as u64,
                e,
            )
        })?;
        Ok((matrix.rows, matrix.k, weights))
    }
}
