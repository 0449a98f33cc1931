//! Records of the host's own, slots and shards.
use moert::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Arc;

const EXPERTS: i32 = 6;
const BYTES: usize = 600;

fn byte_of(layer: i32, expert: i32, part: i32, i: usize) -> u8 {
    (layer * 97 + expert * 31 + part * 7 + i as i32) as u8
}

struct Toy {
    alive: Arc<AtomicUsize>,
    broken: Arc<AtomicBool>,
}

impl Drop for Toy {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Records for Toy {
    fn read(
        &self,
        layer: i32,
        expert: i32,
        part: i32,
        dst: &mut [u8],
    ) -> std::result::Result<(), String> {
        if self.broken.load(Ordering::SeqCst) {
            if expert == 0 {
                panic!("a host's bug");
            }
            return Err("the disk is gone".into());
        }
        for (i, byte) in dst.iter_mut().enumerate() {
            *byte = byte_of(layer, expert, part, i);
        }
        Ok(())
    }
}

fn layers(routing: Routing) -> Vec<LayerSpec> {
    (0..2)
        .map(|l| LayerSpec {
            model_layer: l,
            num_experts: EXPERTS,
            top_k: 2,
            hidden: 16,
            intermediate: 16,
            routing,
            ..Default::default()
        })
        .collect()
}

#[test]
fn records_lie_in_slots() {
    let (alive, broken) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicBool::new(false)));
    let path = std::env::temp_dir().join(format!("moert-records-{}", std::process::id()));
    let mut bytes = b"head".to_vec();
    for layer in 0..2 {
        for expert in 0..EXPERTS {
            bytes.extend((0..BYTES).map(|i| byte_of(layer, expert, 1, i)));
        }
    }
    std::fs::write(&path, bytes).unwrap();
    let mut parts = Vec::new();
    for layer in 0..2 {
        parts.push(RecordPart { layer, bytes: BYTES as i64, alignment: 256, file: None });
        let offset = 4 + i64::from(layer * EXPERTS) * BYTES as i64;
        let file = Some((0, offset));
        parts.push(RecordPart { layer, bytes: BYTES as i64, alignment: 1, file });
    }
    let toy = Toy { alive: alive.clone(), broken: broken.clone() };
    let specs = layers(Routing::External);
    let source = Source::from_records("toy", &specs, &parts, &[&path], toy).unwrap();
    std::fs::remove_file(&path).unwrap();
    let options = Options { budget_fraction: 0.34, ..Default::default() }; // of 12 experts, 4
    let engine = Engine::new(&source, &options).unwrap();
    drop(source);
    for turn in 0..6 {
        let step = engine.step(Phase::Decode, 1).unwrap();
        for layer in 0..2 {
            let ids = [(turn * 2 + layer) % EXPERTS, (turn + 3) % EXPERTS];
            let slots = step.fetch(layer, &ids).unwrap();
            let again = step.fetch(layer, &ids).err().unwrap();
            assert_eq!(again.code, Code::FailedPrecondition);
            for expert in ids {
                for part in 0..2 {
                    let expected: Vec<u8> =
                        (0..BYTES).map(|i| byte_of(layer, expert, part, i)).collect();
                    assert_eq!(slots.part(expert, part as usize).unwrap(), expected);
                }
                assert!(slots.part(expert, 2).is_none());
            }
            let other = (0..EXPERTS).find(|e| !ids.contains(e)).unwrap();
            assert!(slots.slot(other).is_none() && slots.slot(EXPERTS).is_none());
        }
        step.end().unwrap();
    }
    assert!(engine.stats().unwrap().evictions > 0);
    let step = engine.step(Phase::Decode, 1).unwrap();
    let unknown = step.fetch(0, &[EXPERTS]).err().unwrap();
    assert!(unknown.message.contains("expert 6 does not exist"), "{unknown}");
    let many = step.fetch(0, &[0, 1, 2, 3, 4, 5]).err().unwrap();
    assert_eq!(many.code, Code::ResourceExhausted);
    broken.store(true, Ordering::SeqCst);
    let errors: Vec<_> = (0..EXPERTS).filter_map(|e| step.fetch(1, &[e]).err()).collect();
    assert!(errors.iter().any(|e| e.message.contains("the disk is gone")), "{errors:?}");
    drop(step);
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(engine);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

struct Small;

impl Weights for Small {
    fn read(&self, read: &Read, dst: &mut [f32]) -> std::result::Result<(), String> {
        for (i, w) in dst.iter_mut().enumerate() {
            let n = (read.first_row as usize * read.cols as usize + i) * 2654435761
                + read.expert as usize * 97
                + read.part as usize;
            *w = ((n >> 7) % 2001) as f32 / 8000.0 - 0.125;
        }
        Ok(())
    }
}

#[test]
fn shards_add_up() {
    let source = Source::from_weights("w", &layers(Routing::SoftmaxTopK), Small).unwrap();
    let run = |shard: Option<Shard>| {
        let engine = Engine::new(&source, &Options { shard, ..Default::default() }).unwrap();
        let step = engine.step(Phase::Decode, 1).unwrap();
        let x: Vec<f32> = (0..16).map(|i| (i as f32 - 7.0) / 8.0).collect();
        let mut y = vec![0.0; 16];
        step.forward(0, &x, &mut y).unwrap();
        step.end().unwrap();
        y
    };
    let whole = run(None);
    let ranges = [
        Shard { num_experts: 2, ..Default::default() },
        Shard { first_expert: 2, num_experts: 4, ..Default::default() },
    ];
    let lists = [vec![0, 3, 5], vec![1, 2, 4]]
        .map(|list| Shard { experts: vec![list.clone(), list], ..Default::default() });
    for shards in [ranges, lists] {
        source.check_shards(&shards).unwrap();
        let [a, b] = shards.map(|shard| run(Some(shard)));
        for i in 0..16 {
            assert!((a[i] + b[i] - whole[i]).abs() < 1e-4, "{} {} {}", a[i], b[i], whole[i]);
        }
    }
    let overlap = [Shard::default(), Shard { num_experts: 1, ..Default::default() }];
    let error = source.check_shards(&overlap).unwrap_err();
    assert!(error.message.contains("overlap"), "{error}");
}
