//! 64 threads on one engine with errors injected: each error reaches the thread that caused it, and
//! nothing leaks. Alone in its program, because it weighs the heap. MOERT_SOAK_SECONDS lengthens it.
use moert::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

const HIDDEN: usize = 64;
const THREADS: usize = 64;

/// One expert a thread; every third read of one fails and says whose it is.
struct Faulty {
    reads: Arc<Vec<AtomicUsize>>,
}

impl Weights for Faulty {
    fn read(&self, read: &Read, dst: &mut [f32]) -> std::result::Result<(), String> {
        if read.part == Part::GateProj && read.first_row == 0 {
            let n = self.reads[read.expert as usize].fetch_add(1, Ordering::Relaxed);
            if n % 3 == 2 {
                return Err(format!("expert <{}> is gone", read.expert));
            }
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

#[derive(Default)]
struct Tally {
    answered: AtomicUsize,
    failed_reads: AtomicUsize,
    refused: AtomicUsize,
    cancelled: AtomicUsize,
}

fn hammer(engine: &Engine, id: usize, end: Instant, tally: &Tally) {
    let x: Vec<f32> =
        (0..HIDDEN).map(|i| ((i * 37 + id * 101) % 199) as f32 / 99.0 - 1.0).collect();
    let (mut y, mut first) = (vec![0.0; HIDDEN], vec![Vec::new(); 2]);
    let mut round = id;
    while Instant::now() < end {
        round += 1;
        if round % 4 == 0 {
            let rows = 100_000 + id as i64;
            let error = engine.step(Phase::Decode, rows).err().expect("too many rows");
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains(&format!("of {rows} rows")), "{id} got {error}");
            tally.refused.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        let layer = round % 2;
        let step = engine.step(Phase::Decode, 1).unwrap();
        if round % 4 == 1 {
            step.cancel().unwrap();
        }
        // Its own expert: an error of a read can only be this thread's.
        match step.forward_routed(layer as i32, &x, &[id as i32], &[1.0], &mut y) {
            Ok(used) => {
                assert_ne!(round % 4, 1, "a cancelled step went on");
                assert_eq!(used, [id as i32]);
                step.end().unwrap();
                if first[layer].is_empty() {
                    first[layer] = y.clone();
                }
                assert_eq!(first[layer], y);
                tally.answered.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) if error.code == Code::Cancelled => {
                assert_eq!(round % 4, 1, "{id} got another's cancellation");
                assert_eq!(step.end().unwrap_err().code, Code::Cancelled);
                tally.cancelled.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                assert_eq!(error.code, Code::DataLoss);
                assert!(
                    error.message.contains(&format!("expert <{id}> is gone")),
                    "{id} got {error}"
                );
                assert_eq!(step.end().unwrap_err().message, error.message);
                tally.failed_reads.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn all_at_once(engine: &Engine, seconds: f64, tally: &Tally) {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    std::thread::scope(|scope| {
        for id in 0..THREADS {
            scope.spawn(move || hammer(engine, id, end, tally));
        }
    });
}

/// Bytes that malloc has handed out and not got back.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn heap_in_use() -> usize {
    #[repr(C)]
    struct Mallinfo2 {
        before: [usize; 7], // arena ... fsmblks
        uordblks: usize,
        after: [usize; 2],
    }
    extern "C" {
        fn mallinfo2() -> Mallinfo2;
    }
    unsafe { mallinfo2() }.uordblks
}
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn heap_in_use() -> usize {
    0
}

#[test]
fn many_threads_share_an_engine() {
    let seconds: f64 =
        std::env::var("MOERT_SOAK_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(2.0);
    let reads = Arc::new((0..THREADS).map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
    let layers: Vec<LayerSpec> = (0..2)
        .map(|l| LayerSpec {
            model_layer: l,
            num_experts: THREADS as i32,
            top_k: 1,
            hidden: HIDDEN as i64,
            intermediate: 48,
            ..Default::default()
        })
        .collect();
    let source = Source::from_weights("w", &layers, Faulty { reads: reads.clone() }).unwrap();
    let options = Options { budget_fraction: 0.25, ..Default::default() };
    let engine = Engine::new(&source, &options).unwrap();
    drop(source);

    let tally = Tally::default();
    all_at_once(&engine, 0.5, &tally); // the allocator's own arenas, caches
    let (heap, before) = (heap_in_use(), engine.memory().unwrap());
    all_at_once(&engine, seconds, &tally);
    let (grown, after) = (heap_in_use() as i64 - heap as i64, engine.memory().unwrap());

    println!(
        "answered {:?}, failed reads {:?}, refused {:?}, cancelled {:?}; heap grew by {grown} bytes",
        tally.answered, tally.failed_reads, tally.refused, tally.cancelled
    );
    for count in [&tally.answered, &tally.failed_reads, &tally.refused, &tally.cancelled] {
        assert!(count.load(Ordering::Relaxed) > 0);
    }
    assert!(grown < 256 << 10, "{grown} bytes");
    assert_eq!((before.budget_bytes, before.slots), (after.budget_bytes, after.slots));
    let stats = engine.stats().unwrap();
    assert!(stats.peak_bytes <= stats.budget_bytes);
    drop(engine);
    assert_eq!(Arc::strong_count(&reads), 1); // the source went with its last user
}
