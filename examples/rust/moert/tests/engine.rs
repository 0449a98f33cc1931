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

/// Every seam decides; `wrong` makes every answer one that cannot be carried out, or a panic.
struct Everything {
    asked: Arc<[AtomicUsize; 9]>,
    wrong: bool,
    seams: Seams,
}

impl Everything {
    fn count(&self, what: usize) {
        self.asked[what].fetch_add(1, Ordering::SeqCst);
        assert!(!self.wrong || what != 5, "a host's bug");
    }
}

impl Policies for Everything {
    fn seams(&self) -> Seams {
        self.seams
    }
    fn wants_next_gate(&self) -> bool {
        true
    }
    fn observe(&mut self, context: &Context, routing: &RoutingView) {
        assert_eq!(routing.counts.iter().sum::<i32>(), 2);
        assert_eq!((routing.ids.len(), routing.scores.unwrap().len()), (2, 8));
        assert_eq!(context.phase, Phase::Decode);
        self.count(0);
    }
    fn routing_rule(&mut self, _context: &Context, own: Rule) -> Option<Rule> {
        self.count(1);
        assert_eq!(own, Rule::TopK);
        Some(Rule::ExpertCache {
            alpha: if self.wrong { 7.0 } else { 1.0 },
            max_slot_share: 1.0,
            max_mass_share: 1.0,
            second_pass: false,
            own_score_weights: true,
        })
    }
    fn rank(&mut self, prefetch: &Prefetch) -> Option<Vec<Prediction>> {
        self.count(2);
        assert_eq!(prefetch.predicted_scores.unwrap().len(), 8);
        assert_eq!(prefetch.target_layer, (prefetch.context.layer + 1) % 2);
        let experts = if self.wrong { vec![99] } else { vec![0, 1] };
        let named = |(i, expert)| Prediction { expert, score: 9.0 - i as f32, tokens: 1 };
        Some(experts.into_iter().enumerate().map(named).collect())
    }
    fn capacity(&mut self, capacity: &Capacity) -> Option<Vec<i32>> {
        self.count(3);
        let mut all = vec![1; capacity.layers];
        all[0] = capacity.slots as i32 - 1;
        if self.wrong {
            all.push(0);
        }
        Some(all)
    }
    fn victim(&mut self, _context: &Context, candidates: &[Candidate], _prefetch: bool) -> Victim {
        self.count(4);
        match candidates.iter().enumerate().max_by_key(|(_, c)| c.last_used) {
            Some((i, _)) => Victim::Index(if self.wrong { 1000 } else { i }),
            None => Victim::Default,
        }
    }
    fn inserted(&mut self, _layer: i32, _expert: i32, _prefetch: bool) {
        self.count(6);
    }
    fn evicted(&mut self, _layer: i32, _expert: i32) {
        self.count(7);
    }
    fn placement(
        &mut self,
        _context: &Context,
        misses: &[Miss],
        link_busy_ns: i64,
    ) -> Option<Vec<Placement>> {
        self.count(5);
        assert!(link_busy_ns >= 0 && misses.iter().all(|m| m.tokens == 1 && m.cpu_ns < 0));
        Some(vec![Placement::Load; misses.len()])
    }
    fn precision(&mut self, precision: &Precision) -> Option<(Vec<i64>, Vec<i64>)> {
        assert_eq!((precision.selections.len(), precision.high_capacity.len()), (16, 2));
        Some((Vec::new(), Vec::new()))
    }
    fn transfer_version(&mut self, transfer: &Transfer) -> Option<i32> {
        self.count(8);
        assert_eq!(transfer.num_versions, 1);
        Some(if self.wrong { 3 } else { 0 })
    }
}

#[test]
fn policies_decide_and_what_they_cannot_falls_back() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let options = || Options { budget_fraction: 0.5, clock: Clock::Virtual, ..Default::default() };
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
    let make = |wrong: bool, seams: Seams| {
        let asked: Arc<[AtomicUsize; 9]> = Arc::new(Default::default());
        let policies = Everything { asked: asked.clone(), wrong, seams };
        let engine = Engine::with_policies(&source, &options(), Box::new(policies)).unwrap();
        let all = run(&engine);
        let counts: Vec<usize> = asked.iter().map(|n| n.load(Ordering::SeqCst)).collect();
        (all, engine.stats().unwrap(), counts, engine.exact())
    };
    let engine = Engine::new(&source, &options()).unwrap();
    assert!(!engine.graph_safe()); // there is no graph on a CPU
    let needs = engine.graph_needs().unwrap();
    assert!(!needs.capturable && needs.eager_every == 0);
    assert!(needs.obstacle.contains("computes on the host"), "{}", needs.obstacle);
    let plain = run(&engine);

    let cache = Seams { prefetch: true, eviction: true, capacity: true, ..Default::default() };
    let (all, stats, asked, exact) = make(false, cache);
    assert!(exact && all == plain);
    assert_eq!((asked[0], asked[1], asked[2], asked[5]), (40, 0, 40, 0));
    assert!(asked[3] > 0 && asked[4] > 0 && stats.policy_fallbacks == 0);
    assert!(stats.prefetches > 0 && stats.peak_bytes <= stats.budget_bytes);
    assert_eq!((asked[6] - asked[7]) as i64 * 10, 10 * held(&stats));

    let every = Seams { routing: true, precision: true, placement: true, ..cache };
    let (all, stats, asked, exact) = make(false, every);
    assert!(!exact && all != plain && stats.substituted > 0);
    assert_eq!((asked[1], stats.policy_fallbacks), (40, 0), "{asked:?}");
    assert!(asked[5] > 0 && asked[8] == 0, "{asked:?}"); // one version: nothing to choose

    let (all, stats, asked, _) = make(true, every); // nothing of it can be carried out
    assert_eq!(all, plain);
    assert!(stats.policy_fallbacks >= (asked[1] + asked[2] + asked[4] + asked[5]) as i64);
    assert_eq!(stats.substituted, 0);
}

/// Experts in the pools.
fn held(stats: &Stats) -> i64 {
    stats.loads + stats.prefetches - stats.evictions
}

#[test]
fn a_lease_shows_the_weights() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let engine = Engine::new(&source, &Options::default()).unwrap();
    engine.prefetch(1, &[3]).unwrap();
    let step = engine.step(Phase::Decode, 1).unwrap();
    let lease = step.lease(1, &[3]).unwrap();
    let (rows, cols, weights) = lease.read(0, Part::DownProj).unwrap();
    assert_eq!((rows, cols, weights.len()), (64, 48, 64 * 48));
    assert!(weights.iter().any(|w| *w != 0.0) && weights.iter().all(|w| w.abs() <= 0.126));
    let matrix = lease.matrix(0, Part::DownProj).unwrap();
    assert_eq!(matrix.scheme, "bf16");
    // The first lane of the first tile, in place: bf16 of row 0, columns 0 and 1
    // (docs/reference/layout.md).
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
    // With scores the same comes out; of another shape they are refused.
    let (experts, mut scored) = (layers()[0].num_experts as usize, vec![0.0; HIDDEN]);
    let (all, next) = (vec![0.5; experts], vec![0.5; layers()[1].num_experts as usize]);
    let scores = Scores { all: &all, next: &next };
    step.forward_scored(0, &x, &[5, 2], &[2.0, 0.0], scores, &mut scored).unwrap();
    assert_eq!(scored, routed);
    for (a, b) in one.iter().zip(&routed) {
        assert!((2.0 * a - b).abs() <= 1e-6, "{a} {b}");
    }
    assert!(one.iter().any(|v| *v != 0.0));
    // Shapes that do not fit are errors, not memory.
    assert_eq!(step.forward(0, &x, &mut plain[1..]).unwrap_err().code, Code::InvalidArgument);
    let (narrow, mut out) = (vec![0.0; 32], vec![0.0; 32]);
    assert_eq!(step.forward(0, &narrow, &mut out).unwrap_err().code, Code::InvalidArgument);
    let wrong = Scores { all: &all[1..], next: &[] };
    assert!(step.forward_scored(0, &x, &[5, 2], &[2.0, 0.0], wrong, &mut scored).is_err());
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

#[test]
fn a_host_predicts() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let source = Source::from_weights("w", &layers(), Counted::new(&alive, &broken)).unwrap();
    let options = Options {
        strategy: Some("importance:alpha=0".into()),
        budget_fraction: 0.5,
        ..Default::default()
    };
    let engine = Engine::new(&source, &options).unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let mut y = vec![0.0; HIDDEN];
    for s in 0..6 {
        let seen = calls.clone();
        let predict: PredictNext = Box::new(move |layer, partial, next| {
            assert_eq!((layer, partial.len(), next.len()), (0, HIDDEN, HIDDEN));
            next.copy_from_slice(&input(2 * s + 1));
            match seen.fetch_add(1, Ordering::SeqCst) {
                0 => panic!("a host's bug"),
                1 => false,
                _ => true,
            }
        });
        let options = StepOptions { predict_next: Some(predict), ..Default::default() };
        let step = engine.step_with(Phase::Decode, 1, options).unwrap();
        step.forward(0, &input(2 * s), &mut y).unwrap();
        step.forward(1, &input(2 * s + 1), &mut y).unwrap();
        if s % 2 == 0 {
            step.end().unwrap(); // else dropped
        }
    }
    let stats = engine.stats().unwrap();
    assert!(calls.load(Ordering::SeqCst) >= 3);
    let metrics = engine.metrics().unwrap();
    let value = |name: &str| metrics.iter().find(|(n, _)| n == name).unwrap().1 as usize;
    assert_eq!(value("moert_predictions_resident_forward_total"), calls.load(Ordering::SeqCst) - 2);
    assert_eq!(value("moert_lookups_total"), stats.lookups as usize);
    assert_eq!(stats.policy_fallbacks, 2);
    let wrong = StepOptions { request_ids: Some(&[1, 2]), ..Default::default() };
    assert_eq!(
        engine.step_with(Phase::Decode, 1, wrong).err().unwrap().code,
        Code::InvalidArgument
    );
}
