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

mod engine;
mod error;
mod policy;
mod source;

pub use engine::{Engine, Lease, Options, Phase, Stats, Step};
pub use error::{Code, Error, Result};
pub use policy::{Candidate, Policies, Victim};
pub use source::{LayerSpec, Part, Read, Source, Weights};
