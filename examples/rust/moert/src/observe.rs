//! An engine's messages to the host: its log, and every layer call.
use crate::engine::Phase;
use crate::error::text;
use crate::policy::array;
use moert_sys as sys;
use std::ffi::c_void;
use std::os::raw::c_char;
use std::panic::{catch_unwind, AssertUnwindSafe};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Info,
    Warning,
    Error,
}

/// One line for whoever operates the host. Called from the thread that caused it, with nothing locked.
pub type Log = Box<dyn Fn(Level, &str) + Send + Sync>;

/// When a layer call happened and where its time went, in ns of the engine's clock.
pub type CallTimes = sys::moert_call_times;

/// One layer call.
#[derive(Clone, Copy, Debug)]
pub struct TraceCall<'a> {
    pub step: i64,
    pub layer: i32,
    pub phase: Phase,
    pub tokens: usize,
    pub top_k: usize,
    /// One a token; empty if not given.
    pub request_ids: &'a [i64],
    /// [tokens, top_k], the experts used.
    pub ids: &'a [i32],
    pub weights: &'a [f32],
    /// [tokens, experts], or empty.
    pub scores: &'a [f32],
    /// [tokens, experts of the next layer], or empty.
    pub next_scores: &'a [f32],
    pub times: &'a CallTimes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Track {
    Steps,
    Layers,
    Stalls,
    /// Its spans may overlap.
    Link,
}

/// Something that took time. -1: does not apply.
#[derive(Clone, Copy, Debug)]
pub struct TraceSpan<'a> {
    pub name: &'a str,
    pub track: Track,
    pub begin_ns: i64,
    pub end_ns: i64,
    pub step: i64,
    pub layer: i32,
    pub expert: i32,
    pub bytes: i64,
}

/// Sees every layer call, one at a time while the engine is locked: must not call the engine.
pub trait TraceSink: Send + 'static {
    fn call(&mut self, _call: &TraceCall) {}
    fn span(&mut self, _span: &TraceSpan) {}
    /// True: calls carry the next layer's scores even where the strategy has no use for them.
    fn wants_next_scores(&self) -> bool {
        false
    }
}

pub(crate) fn sink(sink: Box<dyn TraceSink>) -> sys::moert_trace_sink {
    let mut c: sys::moert_trace_sink = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_trace_sink_init(&mut c, size) };
    c.wants_next_scores = sink.wants_next_scores() as i32;
    c.user_data = Box::into_raw(Box::new(sink)) as *mut c_void;
    c.on_call = Some(on_call);
    c.on_span = Some(on_span);
    c.destroy = Some(destroy::<Box<dyn TraceSink>>);
    c
}

pub(crate) fn logger(log: Log) -> sys::moert_logger {
    let mut c: sys::moert_logger = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_logger_init(&mut c, size) };
    c.user_data = Box::into_raw(Box::new(log)) as *mut c_void;
    c.log = Some(on_log);
    c.destroy = Some(destroy::<Log>);
    c
}

/// Frees what `sink` and `logger` boxed, when no engine took it.
pub(crate) unsafe fn take_back(
    destroy: Option<unsafe extern "C" fn(*mut c_void)>,
    user_data: *mut c_void,
) {
    if let Some(destroy) = destroy {
        unsafe { destroy(user_data) }
    }
}

unsafe extern "C" fn destroy<T>(user_data: *mut c_void) {
    let boxed = unsafe { Box::from_raw(user_data as *mut T) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(boxed)));
}

unsafe extern "C" fn on_log(
    user_data: *mut c_void,
    level: sys::moert_log_level,
    line: *const c_char,
) {
    let log = unsafe { &*(user_data as *const Log) };
    let level = match level {
        sys::MOERT_LOG_INFO => Level::Info,
        sys::MOERT_LOG_WARNING => Level::Warning,
        _ => Level::Error,
    };
    // A panic of the host must not reach the library.
    let _ = catch_unwind(AssertUnwindSafe(|| log(level, &text(line))));
}

unsafe extern "C" fn on_call(user_data: *mut c_void, call: *const sys::moert_trace_call) {
    let (sink, c) = unsafe { (&mut *(user_data as *mut Box<dyn TraceSink>), &*call) };
    let slots = c.tokens * c.top_k as i64;
    let view = unsafe {
        TraceCall {
            step: c.step,
            layer: c.layer,
            phase: if c.phase == sys::MOERT_PREFILL { Phase::Prefill } else { Phase::Decode },
            tokens: c.tokens as usize,
            top_k: c.top_k as usize,
            request_ids: array(c.request_ids, c.tokens),
            ids: array(c.ids, slots),
            weights: array(c.weights, slots),
            scores: array(c.scores, c.tokens * c.num_experts as i64),
            next_scores: array(c.next_scores, c.tokens * c.next_experts),
            times: &*c.times,
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(|| sink.call(&view)));
}

unsafe extern "C" fn on_span(user_data: *mut c_void, span: *const sys::moert_trace_span) {
    let (sink, c) = unsafe { (&mut *(user_data as *mut Box<dyn TraceSink>), &*span) };
    let name = text(c.name);
    let view = TraceSpan {
        name: &name,
        track: match c.track {
            sys::MOERT_TRACK_STEPS => Track::Steps,
            sys::MOERT_TRACK_LAYERS => Track::Layers,
            sys::MOERT_TRACK_STALLS => Track::Stalls,
            _ => Track::Link,
        },
        begin_ns: c.begin_ns,
        end_ns: c.end_ns,
        step: c.step,
        layer: c.layer,
        expert: c.expert,
        bytes: c.bytes,
    };
    let _ = catch_unwind(AssertUnwindSafe(|| sink.span(&view)));
}
