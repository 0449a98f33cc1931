//! Strategies of the host, simulation, and what an engine tells the host.
use moert::*;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

struct Flat;

impl Weights for Flat {
    fn read(&self, read: &Read, dst: &mut [f32]) -> std::result::Result<(), String> {
        dst.fill((read.expert + 1) as f32 / 64.0);
        Ok(())
    }
}

fn source() -> Source {
    let layers: Vec<LayerSpec> = (0..2)
        .map(|l| LayerSpec {
            model_layer: l,
            num_experts: 8,
            top_k: 2,
            hidden: 64,
            intermediate: 48,
            ..Default::default()
        })
        .collect();
    Source::from_weights("flat", &layers, Flat).unwrap()
}

/// Evicts the candidate that came first.
struct Fifo {
    asked: Arc<AtomicUsize>,
}

impl Policies for Fifo {
    fn seams(&self) -> Seams {
        Seams { eviction: true, ..Default::default() }
    }
    fn victim(&mut self, _: &Context, candidates: &[Candidate], _: bool) -> Victim {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let first = (0..candidates.len()).min_by_key(|i| candidates[*i].inserted);
        first.map_or(Victim::Default, Victim::Index)
    }
}

#[test]
fn a_strategy_of_the_host_has_a_name_like_ours() {
    let asked = Arc::new(AtomicUsize::new(0));
    let info = StrategyInfo {
        name: "rust-fifo".into(),
        summary: "evicts what came first".into(),
        keys: vec![("over".into(), "the spec it builds on".into())],
    };
    let factory = |asked: Arc<AtomicUsize>| -> Factory {
        Box::new(move |params| match params.get("over").as_deref() {
            Some("panic") => panic!("a host's bug"),
            Some("nothing") => Err("over=nothing: must name a strategy".into()),
            over => Ok(Strategy {
                base: over.unwrap_or("on-demand").into(),
                policies: Box::new(Fifo { asked: asked.clone() }),
            }),
        })
    };
    register_strategy(&info, factory(asked.clone())).unwrap();
    let twice = register_strategy(&info, factory(asked.clone())).unwrap_err();
    assert_eq!(twice.code, Code::AlreadyExists);
    assert!(strategies().unwrap().contains(&info));
    assert_eq!(Arc::strong_count(&asked), 2); // the refused factory is gone

    let source = source();
    let engine_of = |spec: &str| {
        let strategy = Some(spec.to_string());
        Engine::new(&source, &Options { strategy, budget_fraction: 0.25, ..Default::default() })
    };
    let refused = engine_of("rust-fifo:over=nothing").err().unwrap();
    assert!(refused.message.contains("must name a strategy"), "{refused}");
    let refused = engine_of("rust-fifo:over=panic").err().unwrap();
    assert!(refused.message.contains("panicked"), "{refused}");
    assert!(engine_of("rust-fifo:under=1").is_err());

    let engine = engine_of("rust-fifo:over=on-demand").unwrap();
    let (x, mut y) = (vec![0.5; 64], vec![0.0; 64]);
    for expert in 0..8 {
        let step = engine.step(Phase::Decode, 1).unwrap();
        let ids = [expert, (expert + 1) % 8];
        step.forward_routed(0, &x, &ids, &[0.5, 0.5], &mut y).unwrap();
        step.end().unwrap();
    }
    assert!(asked.load(Ordering::SeqCst) > 0);
    assert_eq!(engine.stats().unwrap().policy_fallbacks, 0);
}

struct Recorder {
    calls: Arc<Mutex<Vec<(i32, Vec<i32>)>>>,
    spans: Arc<AtomicUsize>,
    alive: Arc<AtomicI64>,
}

impl TraceSink for Recorder {
    fn call(&mut self, call: &TraceCall) {
        assert!(call.times.end_ns >= call.times.begin_ns);
        self.calls.lock().unwrap().push((call.layer, call.ids.to_vec()));
    }
    fn span(&mut self, span: &TraceSpan) {
        assert!(!span.name.is_empty() && span.end_ns >= span.begin_ns);
        self.spans.fetch_add(1, Ordering::SeqCst);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_simulated_engine_decides_as_a_real_one_and_tells_what_it_did() {
    let source = source();
    let routings: Vec<[i32; 2]> = (0..40).map(|s| [s * 3 % 8, (s * 5 + 1) % 8]).collect();
    let run = |clock: Clock| {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let (spans, alive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicI64::new(1)));
        let recorder =
            Recorder { calls: calls.clone(), spans: spans.clone(), alive: alive.clone() };
        let hooks = Hooks { trace: Some(Box::new(recorder)), ..Default::default() };
        let options = Options { budget_fraction: 0.5, clock, ..Default::default() };
        let engine = Engine::with_hooks(&source, &options, hooks).unwrap();
        let (x, mut y) = (vec![0.5; 64], vec![0.0; 64]);
        for ids in routings.iter().filter(|ids| ids[0] != ids[1]) {
            let step = engine.step(Phase::Decode, 1).unwrap();
            for layer in 0..2 {
                let used = match clock {
                    Clock::Simulation => step.simulate(layer, ids, &[0.5, 0.5]).unwrap(),
                    _ => step.forward_routed(layer, &x, ids, &[0.5, 0.5], &mut y).unwrap(),
                };
                assert_eq!(used, ids);
            }
            step.end().unwrap();
        }
        let stats = engine.stats().unwrap();
        drop(engine);
        assert_eq!(alive.load(Ordering::SeqCst), 0);
        let calls = calls.lock().unwrap().clone();
        (calls, spans.load(Ordering::SeqCst), stats.hits_resident, stats.loads, stats.evictions)
    };
    let (real, simulated) = (run(Clock::Virtual), run(Clock::Simulation));
    assert_eq!(real, simulated);
    assert!(!real.0.is_empty() && real.1 > 0 && real.4 > 0);
}

#[test]
fn hooks_are_freed_when_no_engine_is_made() {
    let alive = Arc::new(AtomicI64::new(1));
    let recorder =
        Recorder { calls: Default::default(), spans: Default::default(), alive: alive.clone() };
    let lines = Arc::new(AtomicUsize::new(0));
    let counted = lines.clone();
    let log: Log = Box::new(move |_, _| {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let asked = Arc::new(AtomicUsize::new(0));
    let hooks = Hooks {
        policies: Some(Box::new(Fifo { asked: asked.clone() })),
        trace: Some(Box::new(recorder)),
        log: Some(log),
    };
    let options = Options { budget_bytes: 1, ..Default::default() };
    assert!(Engine::with_hooks(&source(), &options, hooks).is_err());
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    assert_eq!((Arc::strong_count(&lines), Arc::strong_count(&asked)), (1, 1));
}
