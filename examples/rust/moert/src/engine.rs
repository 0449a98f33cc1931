//! Engines, steps and leases.
use crate::error::{check, Result};
use crate::policy::{self, Policies};
use crate::source::{c_string, Part, Source};
use moert_sys as sys;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// The options that hosts most often set; zeros and None mean the library's defaults.
#[derive(Default)]
pub struct Options {
    pub strategy: Option<String>,
    /// Hard limit in bytes; 0: `budget_fraction` decides.
    pub budget_bytes: i64,
    /// Share of the experts in memory; 0: all.
    pub budget_fraction: f64,
    pub max_tokens_per_forward: i64,
    pub threads: i32,
    /// Logical time, reproducible to the bit.
    pub virtual_clock: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Prefill,
    Decode,
}

/// The counters most asked for; `moert_stats` has all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub budget_bytes: i64,
    pub peak_bytes: i64,
    pub lookups: i64,
    pub hits_resident: i64,
    pub hits_prefetched: i64,
    pub loads: i64,
    pub evictions: i64,
    pub prefetch_issued: i64,
    pub policy_fallbacks: i64,
}

pub struct Engine {
    handle: *mut sys::moert_engine,
}

// Every engine function is thread-safe (moert.h).
unsafe impl Send for Engine {}
unsafe impl Sync for Engine {}

impl Drop for Engine {
    fn drop(&mut self) {
        unsafe { sys::moert_engine_destroy(self.handle) }
    }
}

impl Engine {
    pub fn new(source: &Source, options: &Options) -> Result<Engine> {
        Engine::create(source, options, None)
    }

    pub fn with_policies(
        source: &Source,
        options: &Options,
        policies: Box<dyn Policies>,
    ) -> Result<Engine> {
        Engine::create(source, options, Some(policies))
    }

    fn create(
        source: &Source,
        options: &Options,
        policies: Option<Box<dyn Policies>>,
    ) -> Result<Engine> {
        let strategy = match &options.strategy {
            Some(spec) => Some(c_string("strategy", spec)?),
            None => None,
        };
        let mut c: sys::moert_engine_options = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_engine_options_init(&mut c, size) };
        if let Some(spec) = &strategy {
            c.strategy = spec.as_ptr();
        }
        c.budget_bytes = options.budget_bytes;
        if options.budget_fraction != 0.0 {
            c.budget_fraction = options.budget_fraction;
        }
        if options.max_tokens_per_forward != 0 {
            c.max_tokens_per_forward = options.max_tokens_per_forward;
        }
        c.threads = options.threads;
        if options.virtual_clock {
            c.clock = sys::MOERT_CLOCK_VIRTUAL;
        }
        let vtable = policies.map(policy::vtable);
        if let Some(v) = &vtable {
            c.policies = v;
        }
        let mut handle = ptr::null_mut();
        let made =
            check(|e| unsafe { sys::moert_engine_create(source.handle, &c, &mut handle, e) });
        if let Err(error) = made {
            if let Some(v) = &vtable {
                unsafe { policy::take_back(v) }; // on failure they stayed ours
            }
            return Err(error);
        }
        Ok(Engine { handle })
    }

    pub fn layer_count(&self) -> i32 {
        unsafe { sys::moert_engine_layer_count(self.handle) }
    }

    /// Evicts to fit before it returns; refused, with nothing changed, below the minimum.
    pub fn set_budget_bytes(&self, bytes: i64) -> Result<()> {
        check(|e| unsafe { sys::moert_engine_set_budget(self.handle, bytes, 0.0, e) })
    }

    pub fn set_budget_fraction(&self, fraction: f64) -> Result<()> {
        check(|e| unsafe { sys::moert_engine_set_budget(self.handle, 0, fraction, e) })
    }

    pub fn step(&self, phase: Phase, rows: i64) -> Result<Step<'_>> {
        let mut info: sys::moert_step_info = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&info) as u64;
        unsafe { sys::moert_step_info_init(&mut info, size) };
        info.rows = rows;
        info.phase = match phase {
            Phase::Prefill => sys::MOERT_PREFILL,
            Phase::Decode => sys::MOERT_DECODE,
        };
        let mut handle = ptr::null_mut();
        check(|e| unsafe {
            sys::moert_step_begin(
                self.handle, &info, ptr::null(), ptr::null(), ptr::null_mut(), &mut handle, e)
        })?;
        Ok(Step { handle, rows, engine: PhantomData })
    }

    pub fn prefetch_hint(&self, layer: i32, experts: &[i32]) -> Result<()> {
        check(|e| unsafe {
            sys::moert_prefetch_hint(self.handle, layer, experts.as_ptr(), experts.len() as i64, e)
        })
    }

    pub fn stats(&self) -> Result<Stats> {
        let mut c: sys::moert_stats = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_stats_init(&mut c, size) };
        check(|e| unsafe { sys::moert_engine_stats(self.handle, &mut c, e) })?;
        Ok(Stats {
            budget_bytes: c.budget_bytes,
            peak_bytes: c.peak_bytes,
            lookups: c.lookups,
            hits_resident: c.hits_resident,
            hits_prefetched: c.hits_prefetched,
            loads: c.loads,
            evictions: c.evictions,
            prefetch_issued: c.prefetch_issued,
            policy_fallbacks: c.policy_fallbacks,
        })
    }
}

/// One pass over all MoE layers. Dropped without `end`, its errors are nobody's.
pub struct Step<'engine> {
    handle: *mut sys::moert_step,
    rows: i64,
    engine: PhantomData<&'engine Engine>,
}

// Layer calls and cancel are thread-safe; ending takes the step by value.
unsafe impl Send for Step<'_> {}
unsafe impl Sync for Step<'_> {}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_step_end(self.handle, ptr::null_mut()) };
    }
}

impl Step<'_> {
    /// hidden, out: rows x the layer's hidden size, contiguous. Their common length says the width.
    pub fn forward(&self, layer: i32, hidden: &[f32], out: &mut [f32]) -> Result<()> {
        assert_eq!(hidden.len(), out.len(), "hidden and out differ in size");
        assert_eq!(hidden.len() as i64 % self.rows, 0, "hidden is not a whole number of rows");
        let stride = hidden.len() as i64 / self.rows;
        check(|e| unsafe {
            sys::moert_layer_forward(
                self.handle,
                layer,
                hidden.as_ptr() as *const c_void,
                stride,
                sys::MOERT_F32,
                self.rows,
                out.as_mut_ptr() as *mut c_void,
                ptr::null_mut(),
                e,
            )
        })
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
                self.handle, layer, experts.as_ptr(), experts.len() as i64, &mut handle, e)
        })?;
        Ok(Lease { handle, step: PhantomData })
    }

    pub fn end(self) -> Result<()> {
        let handle = self.handle;
        std::mem::forget(self);
        check(|e| unsafe { sys::moert_step_end(handle, e) })
    }
}

pub struct Lease<'step> {
    handle: *mut sys::moert_lease,
    step: PhantomData<&'step ()>,
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_lease_release(self.handle) }
    }
}

impl Lease<'_> {
    /// A projection of the i-th leased expert, row-major and widened: (rows, columns, weights).
    pub fn read(&self, index: i64, part: Part) -> Result<(i64, i64, Vec<f32>)> {
        let mut view: sys::moert_expert_view = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&view) as u64;
        unsafe { sys::moert_expert_view_init(&mut view, size) };
        check(|e| unsafe { sys::moert_lease_view(self.handle, index, &mut view, e) })?;
        let (matrix, part) = match part {
            Part::UpProj => (&view.up, sys::MOERT_PART_UP_PROJ),
            Part::DownProj => (&view.down, sys::MOERT_PART_DOWN_PROJ),
            _ => (&view.gate, sys::MOERT_PART_GATE_PROJ),
        };
        let mut weights = vec![0.0; (matrix.rows * matrix.k) as usize];
        check(|e| unsafe {
            sys::moert_lease_read(
                self.handle, index, part, weights.as_mut_ptr(), weights.len() as u64, e)
        })?;
        Ok((matrix.rows, matrix.k, weights))
    }
}
