//! The safe crate: errors reach their caller, nothing leaks, lifetimes and threads hold.
use moert::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

const HIDDEN: usize = 64;

struct Counted {
    alive: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Counted {
    fn new(alive: &Arc<AtomicUsize>, broken: &Arc<AtomicBool>) -> Counted {
        alive.fetch_add(1, Ordering::SeqCst);
        Counted { alive: alive.clone(), broken: broken.clone() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Weights for Counted {
    fn read(&self, read: &Read, dst: &mut [f32]) -> std::result::Result<(), String> {
        if self.broken.load(Ordering::SeqCst) && read.part == Part::GateProj {
            if read.expert % 2 == 0 {
                panic!("a host's bug");
            }
            return Err(format!("expert {} is gone", read.expert));
        }
        for (i, w) in dst.iter_mut().enumerate() {
            let n = (read.first_row as usize * read.cols as usize + i) * 2654435761
                + read.expert as usize * 97
                + read.layer as usize * 31
                + read.part as usize;
            *w = ((n >> 7) % 2001) as f32 / 8000.0 - 0.125;
        }
        Ok(())
    }
}

fn layers() -> Vec<LayerSpec> {
    (0..2)
        .map(|l| LayerSpec {
            model_layer: l,
            num_experts: 8,
            top_k: 2,
            hidden: HIDDEN as i64,
            intermediate: 48,
            ..Default::default()
        })
        .collect()
}

fn input(seed: usize) -> Vec<f32> {
    (0..HIDDEN).map(|i| ((i * 37 + seed * 101) % 199) as f32 / 99.0 - 1.0).collect()
}

#[test]
fn weights_die_with_their_last_user() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let bad = Source::from_weights("bad", &[], Counted::new(&alive, &broken));
    assert_eq!(bad.err().unwrap().code, Code::InvalidArgument);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    assert_eq!(source.layer_count(), 2);
    let engine = Engine::new(&source, &Options::default()).unwrap();
    drop(source);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(engine);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn errors_and_panics_of_a_host_come_back_as_errors() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let engine = Engine::new(&source, &Options::default()).unwrap();
    broken.store(true, Ordering::SeqCst);
    let (x, mut y) = (input(1), vec![0.0; HIDDEN]);
    let step = engine.step(Phase::Decode, 1).unwrap();
    let error = step.forward(0, &x, &mut y).unwrap_err();
    assert!(error.message.contains("is gone") || error.message.contains("panicked"), "{error}");
    assert_eq!(error.origin, "moert_layer_forward");
    assert_eq!(step.end().unwrap_err().message, error.message);
    broken.store(false, Ordering::SeqCst);
    let step = engine.step(Phase::Decode, 1).unwrap();
    step.forward(0, &x, &mut y).unwrap();
    step.cancel().unwrap();
    assert_eq!(step.forward(1, &x, &mut y).unwrap_err().code, Code::Cancelled);
    assert_eq!(step.end().unwrap_err().code, Code::Cancelled);
    let unknown = Options { strategy: Some("no-such".into()), ..Default::default() };
    assert!(Engine::new(&source, &unknown).err().unwrap().message.contains("on-demand"));
}

struct Newest {
    asked: Arc<AtomicUsize>,
    observed: Arc<AtomicUsize>,
}

impl Policies for Newest {
    fn observe(&mut self, _layer: i32, counts: &[i32]) {
        assert_eq!(counts.iter().sum::<i32>(), 2);
        self.observed.fetch_add(1, Ordering::SeqCst);
    }
    fn victim(&mut self, candidates: &[Candidate], _for_prefetch: bool) -> Victim {
        self.asked.fetch_add(1, Ordering::SeqCst);
        match candidates.iter().enumerate().max_by_key(|(_, c)| c.last_used) {
            Some((i, _)) => Victim::Index(i),
            None => Victim::Default,
        }
    }
    fn rank(&mut self, _target_layer: i32, _counts: &[i32]) -> Option<Vec<i32>> {
        Some(vec![0, 1])
    }
}

#[test]
fn policies_decide_and_the_output_stays() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let options = || Options { budget_fraction: 0.5, virtual_clock: true, ..Default::default() };
    let run = |engine: &Engine| -> Vec<f32> {
        let mut all = Vec::new();
        for s in 0..20 {
            let (x, mut y) = (input(s), vec![0.0; HIDDEN]);
            let step = engine.step(Phase::Decode, 1).unwrap();
            for layer in 0..2 {
                step.forward(layer, &x, &mut y).unwrap();
                all.extend_from_slice(&y);
            }
            step.end().unwrap();
        }
        all
    };
    let plain = run(&Engine::new(&source, &options()).unwrap());
    let (asked, observed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let policies = Newest { asked: asked.clone(), observed: observed.clone() };
    let engine = Engine::with_policies(&source, &options(), Box::new(policies)).unwrap();
    assert_eq!(run(&engine), plain);
    assert_eq!(observed.load(Ordering::SeqCst), 40);
    assert!(asked.load(Ordering::SeqCst) > 0);
    let stats = engine.stats().unwrap();
    assert!(stats.prefetch_issued > 0 && stats.peak_bytes <= stats.budget_bytes);
    assert_eq!(stats.policy_fallbacks, 0);
}

#[test]
fn a_lease_shows_the_weights() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let engine = Engine::new(&source, &Options::default()).unwrap();
    engine.prefetch_hint(1, &[3]).unwrap();
    let step = engine.step(Phase::Decode, 1).unwrap();
    let lease = step.lease(1, &[3]).unwrap();
    let (rows, cols, weights) = lease.read(0, Part::DownProj).unwrap();
    assert_eq!((rows, cols, weights.len()), (64, 48, 64 * 48));
    assert!(weights.iter().any(|w| *w != 0.0) && weights.iter().all(|w| w.abs() <= 0.126));
    let matrix = lease.matrix(0, Part::DownProj).unwrap();
    assert_eq!(matrix.scheme, "bf16");
    // The first lane of the first tile, in place: bf16 of row 0, columns 0 and 1 (docs/layout.md).
    let bytes = &lease.record(0).unwrap()[matrix.weights.clone()];
    let widened =
        |at: usize| f32::from_bits((bytes[at + 1] as u32) << 24 | (bytes[at] as u32) << 16);
    assert_eq!((widened(0), widened(2)), (weights[0], weights[1]));
    assert_eq!(engine.residency(1).unwrap()[3], Residency::High);
    assert!(lease.record(1).unwrap_err().message.contains("1 experts"));
    drop(lease);
    step.end().unwrap();
}

#[test]
fn every_form_of_a_layer_call_says_the_same() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let engine = Engine::new(&source, &Options::default()).unwrap();
    assert_eq!(engine.hidden(0).unwrap(), HIDDEN as i64);
    let (x, mut plain, mut routed) = (input(3), vec![0.0; HIDDEN], vec![0.0; HIDDEN]);
    let step = engine.step_of_requests(Phase::Decode, &[7]).unwrap();
    step.forward(0, &x, &mut plain).unwrap();
    let call = step.begin_forward(0, x.clone(), vec![0.0; HIDDEN]).unwrap();
    let (hidden, split) = call.finish().unwrap();
    assert_eq!((&hidden, &split), (&x, &plain));
    // One expert after the other, added up by hand: the layer is linear in the routing weights.
    let mut one = vec![0.0; HIDDEN];
    assert_eq!(step.forward_routed(0, &x, &[5, 2], &[1.0, 0.0], &mut one).unwrap(), [5, 2]);
    step.forward_routed(0, &x, &[5, 2], &[2.0, 0.0], &mut routed).unwrap();
    for (a, b) in one.iter().zip(&routed) {
        assert!((2.0 * a - b).abs() <= 1e-6, "{a} {b}");
    }
    assert!(one.iter().any(|v| *v != 0.0));
    // Shapes that do not fit are errors, not memory.
    assert_eq!(step.forward(0, &x, &mut plain[1..]).unwrap_err().code, Code::InvalidArgument);
    let (narrow, mut out) = (vec![0.0; 32], vec![0.0; 32]);
    assert_eq!(step.forward(0, &narrow, &mut out).unwrap_err().code, Code::InvalidArgument);
    let bad = step.forward_routed(0, &x, &[1], &[1.0], &mut plain).unwrap_err();
    assert_eq!(bad.code, Code::InvalidArgument);
    assert!(
        step.begin_forward(9, x.clone(), x.clone()).is_err() || {
            step.begin_forward(9, x.clone(), x.clone()).unwrap().finish().is_err()
        }
    );
    let _ = step.end(); // the failed calls are its errors
    let text = engine.prometheus("rust").unwrap();
    assert!(text.contains("moert_lookups_total{engine=\"rust\"}"), "{text}");
    let memory = engine.memory().unwrap();
    assert!(memory.total_experts == 16 && memory.budget_bytes >= memory.minimum_bytes);
}
