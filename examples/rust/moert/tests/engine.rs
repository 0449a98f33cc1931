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
                + read.expert as usize * 97 + read.layer as usize * 31 + read.part as usize;
            *w = ((n >> 7) % 2001) as f32 / 8000.0 - 0.125;
        }
        Ok(())
    }
}

fn layers() -> Vec<LayerSpec> {
    (0..2)
        .map(|l| LayerSpec {
            model_layer: l, num_experts: 8, top_k: 2, hidden: HIDDEN as i64, intermediate: 48,
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
    drop(lease);
    step.end().unwrap();
}

/// 64 threads on one engine; every error reaches its own caller. MOERT_SOAK_SECONDS lengthens it.
#[test]
fn many_threads_share_an_engine() {
    let seconds: f64 =
        std::env::var("MOERT_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(1.0);
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let options = Options { budget_fraction: 0.25, ..Default::default() };
    let engine = Engine::new(&source, &options).unwrap();
    std::thread::scope(|scope| {
        for id in 0..64usize {
            let engine = &engine;
            scope.spawn(move || {
                let end = std::time::Instant::now() + std::time::Duration::from_secs_f64(seconds);
                let (x, mut y, mut first) = (input(id), vec![0.0; HIDDEN], Vec::new());
                while std::time::Instant::now() < end {
                    let error = engine.step(Phase::Decode, 100_000 + id as i64).err().unwrap();
                    assert!(error.message.contains(&format!("of {} rows", 100_000 + id)), "{error}");
                    let step = engine.step(Phase::Decode, 1).unwrap();
                    step.forward((id % 2) as i32, &x, &mut y).unwrap();
                    step.end().unwrap();
                    if first.is_empty() {
                        first = y.clone();
                    }
                    assert_eq!(first, y);
                }
            });
        }
    });
}
