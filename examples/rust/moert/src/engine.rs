//! Engines: experts under one byte budget.
use crate::error::{check, text, Code, Error, Result};
use crate::observe::{self, Log, TraceSink};
use crate::policy::{self, Policies};
use crate::records::Shard;
use crate::source::{c_string, Source};
use crate::step::{predict_next, Predictor, Step, StepOptions};
use moert_sys as sys;
use std::ffi::c_void;
use std::ptr;

/// The counters that every host can use; `Engine::metrics` has all.
pub type Stats = sys::moert_stats;
/// The parts of the budget, in bytes.
pub type Memory = sys::moert_memory;

/// The requirements of captured layer calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphNeeds {
    pub capturable: bool,
    /// One of so many steps has to run eagerly between replays; 0: none.
    pub eager_every: i32,
    /// Why layer calls cannot be captured; empty where they can.
    pub obstacle: String,
    /// Rows of a captured call, at most; 0: any number.
    pub max_rows: i64,
}

/// Zeros and None mean the library's defaults. Engines of this crate run on the CPU backend: slices
/// are host memory (device pointers go through moert-sys).
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub strategy: Option<String>,
    /// Weakest promise accepted: "exact", "faithful" or "lossy"; None: the strategy's own.
    pub promise: Option<String>,
    /// Hard limit in bytes; 0: `budget_fraction` decides.
    pub budget_bytes: i64,
    /// Share of the experts in memory; 0: all.
    pub budget_fraction: f64,
    pub max_tokens_per_forward: i64,
    pub threads: i32,
    pub io_threads: i32,
    /// CPUs of the compute threads, "0-3,8".
    pub cpus: Option<String>,
    /// Paces transfers, GB/s.
    pub link_gbps: f64,
    pub clock: Clock,
    /// Writes a routing trace.
    pub trace_path: Option<String>,
    /// Writes a timeline, Chrome trace JSON.
    pub timeline_path: Option<String>,
    /// Regular files of these names are replaced; else they are an error.
    pub replace_traces: bool,
    /// A part of every layer, whose output is a partial sum.
    pub shard: Option<Shard>,
}

/// The kind of clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    #[default]
    Wall,
    /// Logical time, reproducible to the bit.
    Virtual,
    /// The same, and no expert is read or multiplied: decisions and times only. Layer calls are
    /// `Step::simulate`.
    Simulation,
}

/// The host's own parts.
#[derive(Default)]
pub struct Hooks {
    /// Decides in place of the strategy's policies.
    pub policies: Option<Box<dyn Policies>>,
    pub trace: Option<Box<dyn TraceSink>>,
    pub log: Option<Log>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Prefill,
    Decode,
}

/// Where an expert is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    Absent,
    Arriving,
    Low,
    High,
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
        Engine::with_hooks(source, options, Hooks::default())
    }

    pub fn with_policies(
        source: &Source,
        options: &Options,
        policies: Box<dyn Policies>,
    ) -> Result<Engine> {
        Engine::with_hooks(
            source,
            options,
            Hooks { policies: Some(policies), ..Default::default() },
        )
    }

    pub fn with_hooks(source: &Source, options: &Options, hooks: Hooks) -> Result<Engine> {
        let optional = |what: &str, value: &Option<String>| {
            value.as_ref().map(|v| c_string(what, v)).transpose()
        };
        let strategy = optional("strategy", &options.strategy)?;
        let promise = optional("promise", &options.promise)?;
        let cpus = optional("cpus", &options.cpus)?;
        let trace_path = optional("trace_path", &options.trace_path)?;
        let timeline_path = optional("timeline_path", &options.timeline_path)?;
        let mut c: sys::moert_engine_options = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_engine_options_init(&mut c, size) };
        c.backend = sys::MOERT_BACKEND_CPU;
        let set = |field: &mut *const std::os::raw::c_char, value: &Option<std::ffi::CString>| {
            if let Some(value) = value {
                *field = value.as_ptr();
            }
        };
        set(&mut c.strategy, &strategy);
        set(&mut c.promise, &promise);
        set(&mut c.cpus, &cpus);
        set(&mut c.trace_path, &trace_path);
        set(&mut c.timeline_path, &timeline_path);
        c.trace_replace = i64::from(options.replace_traces);
        if options.io_threads != 0 {
            c.io_threads = options.io_threads;
        }
        c.link_gbps = options.link_gbps;
        c.budget_bytes = options.budget_bytes;
        if options.budget_fraction != 0.0 {
            c.budget_fraction = options.budget_fraction;
        }
        if options.max_tokens_per_forward != 0 {
            c.max_tokens_per_forward = options.max_tokens_per_forward;
        }
        c.threads = options.threads;
        c.clock = match options.clock {
            Clock::Wall => sys::MOERT_CLOCK_WALL,
            Clock::Virtual => sys::MOERT_CLOCK_VIRTUAL,
            Clock::Simulation => sys::MOERT_CLOCK_SIMULATION,
        };
        let shard = options.shard.as_ref().map(Shard::to_c);
        if let Some((shard, _list)) = &shard {
            c.shard = shard;
        }
        let vtable = hooks.policies.map(policy::vtable);
        let sink = hooks.trace.map(observe::sink);
        let logger = hooks.log.map(observe::logger);
        if let Some(v) = &vtable {
            c.policies = v;
        }
        if let Some(s) = &sink {
            c.trace_sink = s;
        }
        if let Some(l) = &logger {
            c.logger = l;
        }
        let mut handle = ptr::null_mut();
        let made =
            check(|e| unsafe { sys::moert_engine_create(source.handle, &c, &mut handle, e) });
        if let Err(error) = made {
            // After a failure the library has not taken them.
            if let Some(v) = &vtable {
                unsafe { policy::take_back(v) };
            }
            if let Some(s) = &sink {
                unsafe { observe::take_back(s.destroy, s.user_data) };
            }
            if let Some(l) = &logger {
                unsafe { observe::take_back(l.destroy, l.user_data) };
            }
            return Err(error);
        }
        Ok(Engine { handle })
    }

    pub fn layer_count(&self) -> i32 {
        unsafe { sys::moert_engine_layer_count(self.handle) }
    }

    /// `exact` (the same bits at any budget), `faithful` (rounded as two processors do) or `lossy`.
    pub fn promise(&self) -> &'static str {
        let name = unsafe { std::ffi::CStr::from_ptr(sys::moert_engine_promise(self.handle)) };
        name.to_str().unwrap_or_default()
    }

    /// The output is the same at any budget and thread count.
    pub fn exact(&self) -> bool {
        unsafe { sys::moert_engine_exact(self.handle) != 0 }
    }

    /// Layer calls may be recorded into a CUDA graph.
    pub fn graph_safe(&self) -> bool {
        unsafe { sys::moert_engine_graph_safe(self.handle) != 0 }
    }

    /// The requirements of captured layer calls; they do not change.
    pub fn graph_needs(&self) -> Result<GraphNeeds> {
        let mut c: sys::moert_graph_needs = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_graph_needs_init(&mut c, size) };
        check(|e| unsafe { sys::moert_engine_graph_needs(self.handle, &mut c, e) })?;
        Ok(GraphNeeds {
            capturable: c.capturable != 0,
            eager_every: c.eager_every,
            obstacle: text(c.obstacle),
            max_rows: c.max_rows,
        })
    }

    /// Evicts to fit before it returns; refused, with nothing changed, below the minimum.
    pub fn set_budget_bytes(&self, bytes: i64) -> Result<()> {
        check(|e| unsafe { sys::moert_engine_set_budget(self.handle, bytes, 0.0, e) })
    }

    pub fn set_budget_fraction(&self, fraction: f64) -> Result<()> {
        check(|e| unsafe { sys::moert_engine_set_budget(self.handle, 0, fraction, e) })
    }

    /// Opens a step of `rows` tokens: one pass over all MoE layers.
    pub fn step(&self, phase: Phase, rows: i64) -> Result<Step<'_>> {
        self.step_with(phase, rows, StepOptions::default())
    }

    /// Like `step`, with the request of each row, one element per row.
    pub fn step_of_requests(&self, phase: Phase, request_ids: &[i64]) -> Result<Step<'_>> {
        let options = StepOptions { request_ids: Some(request_ids), ..Default::default() };
        self.step_with(phase, request_ids.len() as i64, options)
    }

    /// Like `step`, with options.
    pub fn step_with(&self, phase: Phase, rows: i64, options: StepOptions) -> Result<Step<'_>> {
        let mut info: sys::moert_step_options = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&info) as u64;
        unsafe { sys::moert_step_options_init(&mut info, size) };
        info.rows = rows;
        info.phase = match phase {
            Phase::Prefill => sys::MOERT_PREFILL,
            Phase::Decode => sys::MOERT_DECODE,
        };
        let mut predictor = None;
        if let Some(predict) = options.predict_next {
            let boxed = Box::new(Predictor { predict });
            info.user_data = &*boxed as *const Predictor as *mut c_void;
            info.predict_next = Some(predict_next);
            predictor = Some(boxed);
        }
        if let Some(ids) = options.request_ids {
            if ids.len() as i64 != rows {
                return Err(Error {
                    code: Code::InvalidArgument,
                    origin: "Engine::step_with".into(),
                    message: format!("{} request ids for {rows} rows", ids.len()),
                });
            }
        }
        info.request_ids = options.request_ids.map_or(ptr::null(), |ids| ids.as_ptr());
        let mut handle = ptr::null_mut();
        check(|e| unsafe { sys::moert_step_begin(self.handle, &info, &mut handle, e) })?;
        Ok(Step::new(handle, rows, predictor, self))
    }

    /// Hints that these experts of a layer will be needed, best first.
    pub fn prefetch(&self, layer: i32, experts: &[i32]) -> Result<()> {
        check(|e| unsafe {
            sys::moert_engine_prefetch(
                self.handle,
                layer,
                experts.as_ptr(),
                experts.len() as i64,
                e,
            )
        })
    }

    /// A snapshot of the last finished layer call.
    pub fn stats(&self) -> Result<Stats> {
        let mut c: Stats = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_stats_init(&mut c, size) };
        check(|e| unsafe { sys::moert_engine_stats(self.handle, &mut c, e) })?;
        Ok(c)
    }

    /// Every metric of one snapshot by its name (docs/reference/metrics.md), in a fixed order.
    pub fn metrics(&self) -> Result<Vec<(String, f64)>> {
        unsafe extern "C" fn visit(
            user_data: *mut c_void,
            name: *const std::os::raw::c_char,
            value: f64,
        ) {
            let all = unsafe { &mut *(user_data as *mut Vec<(String, f64)>) };
            all.push((text(name), value));
        }
        let mut all: Vec<(String, f64)> = Vec::new();
        let to = &mut all as *mut _ as *mut c_void;
        check(|e| unsafe { sys::moert_metrics_visit(self.handle, Some(visit), to, e) })?;
        Ok(all)
    }

    pub fn memory(&self) -> Result<Memory> {
        let mut c: Memory = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_memory_init(&mut c, size) };
        check(|e| unsafe { sys::moert_engine_memory(self.handle, &mut c, e) })?;
        Ok(c)
    }

    /// Width of a layer's hidden states.
    pub fn hidden(&self, layer: i32) -> Result<i64> {
        Ok(self.layer(layer)?.hidden)
    }

    /// A state for each expert of the layer.
    pub fn residency(&self, layer: i32) -> Result<Vec<Residency>> {
        let mut states = vec![0u8; self.layer(layer)?.num_experts as usize];
        check(|e| unsafe {
            sys::moert_engine_residency(
                self.handle,
                layer,
                states.as_mut_ptr(),
                states.len() as i64,
                e,
            )
        })?;
        let named = |state: &u8| match *state as i32 {
            1 => Residency::Arriving,
            2 => Residency::Low,
            3 => Residency::High,
            _ => Residency::Absent,
        };
        Ok(states.iter().map(named).collect())
    }

    pub(crate) fn layer(&self, layer: i32) -> Result<sys::moert_layer_spec> {
        let mut c: sys::moert_layer_spec = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_layer_spec_init(&mut c, size) };
        check(|e| unsafe { sys::moert_engine_layer(self.handle, layer, &mut c, e) })?;
        Ok(c)
    }

    /// The statistics as Prometheus text; `label` names the engine.
    pub fn prometheus(&self, label: &str) -> Result<String> {
        let label = c_string("label", label)?;
        let mut buffer: Vec<std::os::raw::c_char> = Vec::new();
        loop {
            let mut needed = 0u64;
            let data = if buffer.is_empty() { ptr::null_mut() } else { buffer.as_mut_ptr() };
            let written = check(|e| unsafe {
                sys::moert_metrics_prometheus(
                    self.handle,
                    label.as_ptr(),
                    data,
                    buffer.len() as u64,
                    &mut needed,
                    e,
                )
            });
            if written.is_ok() && !buffer.is_empty() {
                return Ok(text(buffer.as_ptr()));
            }
            if needed as usize <= buffer.len() {
                written?;
            }
            buffer.resize(needed as usize + 64, 0); // numbers may have grown a digit by then
        }
    }

    /// Completes the files of `trace_path` and `timeline_path`.
    pub fn close_trace(&self) -> Result<()> {
        check(|e| unsafe { sys::moert_engine_close_trace(self.handle, e) })
    }
}
