//! A host in Rust with weights of its own: a quarter of the experts in memory, eight steps of decoding,
//! then all of them. examples/c_host, hello_layer and go do the same and print the same.
use moert::{Clock, Engine, LayerSpec, Options, Part, Phase, Read, Source, Weights};

const HIDDEN: usize = 64;

/// A formula instead of a file: in [-1, 1), exact in fp32.
fn value(layer: u32, expert: u32, part: u32, index: u32) -> f32 {
    let mut h = layer.wrapping_mul(73856093)
        ^ expert.wrapping_add(1).wrapping_mul(19349663)
        ^ (part + 1).wrapping_mul(83492791)
        ^ index.wrapping_mul(2654435761);
    h ^= h >> 16;
    h = h.wrapping_mul(0x7feb352d);
    h ^= h >> 15;
    h = h.wrapping_mul(0x846ca68b);
    h ^= h >> 16;
    ((h >> 8) as i32 - 8388608) as f32 / 8388608.0
}

struct Formula;

impl Weights for Formula {
    fn read(&self, read: &Read, dst: &mut [f32]) -> Result<(), String> {
        let scale = if read.part == Part::Router { 1.0 } else { 0.125 };
        let first = (read.first_row * read.cols) as u32;
        for (i, w) in dst.iter_mut().enumerate() {
            *w = scale
                * value(read.layer as u32, read.expert as u32, read.part as u32, first + i as u32);
        }
        Ok(())
    }
}

fn main() -> moert::Result<()> {
    let layers: Vec<LayerSpec> = (0..2)
        .map(|l| LayerSpec {
            model_layer: l,
            num_experts: 8,
            top_k: 2,
            hidden: HIDDEN as i64,
            intermediate: 48,
            renormalize: true,
            ..Default::default()
        })
        .collect();
    let source = Source::from_weights("tiny", &layers, Formula)?;
    let options = Options { budget_fraction: 0.25, clock: Clock::Virtual, ..Default::default() };
    let engine = Engine::new(&source, &options)?;

    let mut y = [0.0f32; HIDDEN];
    for token in 0..8 {
        let mut x: Vec<f32> =
            (0..HIDDEN).map(|i| value(99, 0, 0, (token * HIDDEN + i) as u32)).collect();
        let step = engine.step(Phase::Decode, 1)?;
        for layer in 0..engine.layer_count() {
            step.forward(layer, &x, &mut y)?;
            x.iter_mut().zip(&y).for_each(|(x, y)| *x += y); // the host's residual stream
        }
        step.end()?;
        println!("token {token}: {:.6} {:.6} {:.6}", x[0], x[1], x[2]);
    }

    let stats = engine.stats()?;
    println!(
        "lookups {}, hits {}, loads {}, evictions {}, budget kept: {}",
        stats.lookups,
        stats.hits_resident,
        stats.loads,
        stats.evictions,
        if stats.peak_bytes <= stats.budget_bytes { "yes" } else { "no" }
    );
    let refused = engine.set_budget_bytes(1).unwrap_err();
    assert_eq!(refused.code, moert::Code::InvalidArgument);
    println!("one byte: INVALID_ARGUMENT");
    engine.set_budget_fraction(1.0) // live
}
