//! libmoert, safely.
//!
//! ```text
//! let engine = Engine::new(&source, &Options { budget_fraction: 0.25, ..Default::default() })?;
//! let step = engine.step(Phase::Decode, 1)?;
//! for layer in 0..engine.layer_count() { step.forward(layer, &x, &mut y)?; }
//! step.end()?;
//! ```
//!
//! An `Engine` is `Send` and `Sync`: share it between threads. A `Step` borrows its engine and its
//! layer calls may come from any thread too. Layer calls of one engine take turns.

#![deny(unsafe_op_in_unsafe_fn)]

mod engine;
mod error;
mod observe;
mod policy;
mod records;
mod source;
mod step;
mod strategy;

pub use engine::{Clock, Engine, Hooks, Memory, Options, Phase, Residency, Stats};
pub use error::{Code, Error, Result};
pub use observe::{CallTimes, Level, Log, TraceCall, TraceSink, TraceSpan, Track};
pub use policy::{
    Candidate, Capacity, Context, Miss, Placement, Policies, Precision, Prediction, Prefetch,
    Routing as RoutingView, Rule, Seams, Transfer, Victim,
};
pub use records::{RecordPart, Records, Shard, Slots};
pub use source::{Activation, LayerSpec, Part, Read, Routing, Source, Weights};
pub use step::{Call, Lease, Matrix, PredictNext, Scores, Step, StepOptions};
pub use strategy::{register_strategy, strategies, Factory, Params, Strategy, StrategyInfo};
