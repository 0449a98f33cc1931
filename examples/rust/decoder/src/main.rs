//! A host in Rust with attention of its own: a whole decoder in the manner of candle, whose MoE layers
//! libmoert computes with a quarter of the experts in memory. Prints the negative log-likelihood of a
//! text, which is that of any other host of the same model.
//!
//!     moert-decoder MODEL_DIR TOKENS.u16 [TOKENS]
//!
//! Reads qwen2_moe checkpoints of one bf16 safetensors file, as the bundled model is.
mod json;
mod tensor;

use json::Json;
use moert::{Engine, Options, Phase, Source, Step};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tensor::{dot, load, Linear, Result, RmsNorm, Tensor};

/// Takes the place of a candle model's sparse MoE block: a layer of a shared engine.
struct MoertMoe {
    layer: i32,
}

impl MoertMoe {
    fn forward(&self, step: &Step<'_>, x: &Tensor) -> Result<Tensor> {
        let mut out = Tensor::zeros(x.rows, x.cols);
        step.forward(self.layer, &x.data, &mut out.data)?;
        Ok(out)
    }
}

struct Attention {
    q: Linear,
    k: Linear,
    v: Linear,
    o: Linear,
    heads: usize,
    kv_heads: usize,
    theta: f32,
}

impl Attention {
    /// Rotates each head's halves by the position.
    fn rope(&self, x: &mut Tensor, heads: usize) {
        let width = x.cols / heads;
        for position in 0..x.rows {
            for head in x.row_mut(position).chunks_exact_mut(width) {
                for i in 0..width / 2 {
                    let turn = self.theta.powf(-2.0 * i as f32 / width as f32) * position as f32;
                    let (sin, cos) = turn.sin_cos();
                    let (a, b) = (head[i], head[i + width / 2]);
                    head[i] = a * cos - b * sin;
                    head[i + width / 2] = b * cos + a * sin;
                }
            }
        }
    }

    /// One sequence from its first position on.
    fn forward(&self, x: &Tensor) -> Tensor {
        let (mut q, mut k, v) = (self.q.forward(x), self.k.forward(x), self.v.forward(x));
        self.rope(&mut q, self.heads);
        self.rope(&mut k, self.kv_heads);
        let width = q.cols / self.heads;
        let scale = 1.0 / (width as f32).sqrt();
        let mut mixed = Tensor::zeros(x.rows, q.cols);
        for head in 0..self.heads {
            let (at, kv) = (head * width, head / (self.heads / self.kv_heads) * width);
            for t in 0..x.rows {
                let query = &q.row(t)[at..at + width];
                let mut weights: Vec<f32> =
                    (0..=t).map(|s| dot(query, &k.row(s)[kv..kv + width]) * scale).collect();
                let most = weights.iter().copied().fold(f32::MIN, f32::max);
                weights.iter_mut().for_each(|w| *w = (*w - most).exp());
                let sum: f32 = weights.iter().sum();
                for (s, w) in weights.iter().enumerate() {
                    let out = &mut mixed.row_mut(t)[at..at + width];
                    let value = &v.row(s)[kv..kv + width];
                    out.iter_mut().zip(value).for_each(|(o, v)| *o += w / sum * v);
                }
            }
        }
        self.o.forward(&mixed)
    }
}

struct Layer {
    attention_norm: RmsNorm,
    attention: Attention,
    moe_norm: RmsNorm,
    moe: MoertMoe,
}

struct Decoder {
    embedding: Tensor, // also the head
    layers: Vec<Layer>,
    norm: RmsNorm,
    engine: Arc<Engine>,
}

impl Decoder {
    fn open(dir: &Path, options: &Options) -> Result<Decoder> {
        let config = Json::parse(&std::fs::read_to_string(dir.join("config.json"))?)?;
        if !matches!(config.get("model_type"), Some(Json::Text(t)) if t == "qwen2_moe") {
            return Err("config.json: model_type must be qwen2_moe".into());
        }
        let engine = Arc::new(Engine::new(&Source::open(dir)?, options)?);
        // Experts, routers and shared experts are libmoert's.
        let mut tensors = load(&dir.join("model.safetensors"), |name| {
            name != "__metadata__" && !name.contains(".mlp.")
        })?;
        let mut take = |name: &str| take_tensor(&mut tensors, name);
        let eps = config.number("rms_norm_eps")? as f32;
        let count = config.number("num_hidden_layers")? as usize;
        if count != engine.layer_count() as usize {
            return Err("every layer has to be a sparse one".into());
        }
        let mut layers = Vec::new();
        for l in 0..count {
            let name = |part: &str| format!("model.layers.{l}.{part}.weight");
            let mut projection = |part: &str, bias: bool| -> Result<Linear> {
                let weight = take(&name(&format!("self_attn.{part}")))?;
                let bias = if bias {
                    Some(take(&format!("model.layers.{l}.self_attn.{part}.bias"))?.data)
                } else {
                    None
                };
                Ok(Linear { weight, bias })
            };
            let attention = Attention {
                q: projection("q_proj", true)?,
                k: projection("k_proj", true)?,
                v: projection("v_proj", true)?,
                o: projection("o_proj", false)?,
                heads: config.number("num_attention_heads")? as usize,
                kv_heads: config.number("num_key_value_heads")? as usize,
                theta: config.number("rope_theta")? as f32,
            };
            layers.push(Layer {
                attention_norm: RmsNorm { weight: take(&name("input_layernorm"))?.data, eps },
                attention,
                moe_norm: RmsNorm { weight: take(&name("post_attention_layernorm"))?.data, eps },
                moe: MoertMoe { layer: l as i32 },
            });
        }
        let norm = RmsNorm { weight: take("model.norm.weight")?.data, eps };
        Ok(Decoder { embedding: take("model.embed_tokens.weight")?, layers, norm, engine })
    }

    /// Logits of every position of one sequence.
    fn forward(&self, tokens: &[u16]) -> Result<Tensor> {
        let mut x = Tensor::zeros(tokens.len(), self.embedding.cols);
        for (t, &token) in tokens.iter().enumerate() {
            if token as usize >= self.embedding.rows {
                return Err(format!("token {token} is not in the vocabulary").into());
            }
            x.row_mut(t).copy_from_slice(self.embedding.row(token as usize));
        }
        let step = self.engine.step(Phase::Prefill, tokens.len() as i64)?;
        for layer in &self.layers {
            x.add(&layer.attention.forward(&layer.attention_norm.forward(&x)));
            x.add(&layer.moe.forward(&step, &layer.moe_norm.forward(&x))?);
        }
        step.end()?;
        let head = Linear { weight: self.embedding.clone(), bias: None };
        Ok(head.forward(&self.norm.forward(&x)))
    }
}

fn take_tensor(tensors: &mut HashMap<String, Tensor>, name: &str) -> Result<Tensor> {
    tensors.remove(name).ok_or_else(|| format!("the checkpoint has no {name}").into())
}

fn run(model: &str, token_file: &str, limit: usize) -> Result<()> {
    const WINDOW: usize = 512;
    let bytes = std::fs::read(token_file)?;
    let tokens: Vec<u16> =
        bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).take(limit).collect();
    let options = Options {
        budget_fraction: 0.25,
        max_tokens_per_forward: WINDOW as i64,
        ..Default::default()
    };
    let decoder = Decoder::open(Path::new(model), &options)?;
    let (mut total, mut scored) = (0.0f64, 0);
    for window in tokens.chunks_exact(WINDOW.min(tokens.len().max(1))) {
        let logits = decoder.forward(window)?;
        for (t, &next) in window[1..].iter().enumerate() {
            let row = logits.row(t);
            let most = row.iter().copied().fold(f32::MIN, f32::max) as f64;
            let sum: f64 = row.iter().map(|&v| (v as f64 - most).exp()).sum();
            total += most + sum.ln() - row[next as usize] as f64;
            scored += 1;
        }
    }
    let stats = decoder.engine.stats()?;
    println!("nll {:.6} over {scored} tokens", total / scored as f64);
    println!(
        "lookups {}, resident {}, loads {}, peak {} of {} bytes",
        stats.lookups, stats.hits_resident, stats.loads, stats.peak_bytes, stats.budget_bytes
    );
    Ok(())
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.len() != 3 && arguments.len() != 4 {
        eprintln!("usage: {} MODEL_DIR TOKENS.u16 [TOKENS]", arguments[0]);
        std::process::exit(2);
    }
    let limit = arguments.get(3).and_then(|n| n.parse().ok()).unwrap_or(512);
    if let Err(error) = run(&arguments[1], &arguments[2], limit) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
