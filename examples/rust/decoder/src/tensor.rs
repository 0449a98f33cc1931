//! Tensors and layers in the manner of candle: contiguous fp32 on the CPU, layers that are values.
use crate::json::Json;
use std::collections::HashMap;
use std::path::Path;

pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

#[derive(Clone, Debug)]
pub struct Tensor {
    pub data: Vec<f32>,
    pub rows: usize,
    pub cols: usize,
}

impl Tensor {
    pub fn zeros(rows: usize, cols: usize) -> Tensor {
        Tensor { data: vec![0.0; rows * cols], rows, cols }
    }

    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.cols..(r + 1) * self.cols]
    }

    pub fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.cols..(r + 1) * self.cols]
    }

    pub fn add(&mut self, other: &Tensor) {
        self.data.iter_mut().zip(&other.data).for_each(|(a, b)| *a += b);
    }
}

pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    // Eight sums, so that the compiler can use vector registers.
    let mut sums = [0.0f32; 8];
    let (x, y) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = x.remainder().iter().zip(y.remainder()).map(|(p, q)| p * q).sum();
    for (p, q) in x.zip(y) {
        for i in 0..8 {
            sums[i] += p[i] * q[i];
        }
    }
    sums.iter().sum::<f32>() + rest
}

pub struct Linear {
    pub weight: Tensor, // [out, in]
    pub bias: Option<Vec<f32>>,
}

impl Linear {
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let mut y = Tensor::zeros(x.rows, self.weight.rows);
        for r in 0..x.rows {
            for o in 0..self.weight.rows {
                let b = self.bias.as_ref().map_or(0.0, |b| b[o]);
                y.data[r * self.weight.rows + o] = dot(x.row(r), self.weight.row(o)) + b;
            }
        }
        y
    }
}

pub struct RmsNorm {
    pub weight: Vec<f32>,
    pub eps: f32,
}

impl RmsNorm {
    pub fn forward(&self, x: &Tensor) -> Tensor {
        let mut y = x.clone();
        for r in 0..x.rows {
            let scale = 1.0 / (dot(x.row(r), x.row(r)) / x.cols as f32 + self.eps).sqrt();
            y.row_mut(r).iter_mut().zip(&self.weight).for_each(|(v, w)| *v *= scale * w);
        }
        y
    }
}

/// The bf16 tensors of a safetensors file that `wanted` accepts, widened.
pub fn load(path: &Path, wanted: impl Fn(&str) -> bool) -> Result<HashMap<String, Tensor>> {
    let bytes = std::fs::read(path)?;
    let length = bytes.get(..8).ok_or("no header")?.try_into().map(u64::from_le_bytes)?;
    let end = 8usize.checked_add(usize::try_from(length)?).ok_or("header too long")?;
    let header = std::str::from_utf8(bytes.get(8..end).ok_or("header too long")?)?;
    let fields = match Json::parse(header)? {
        Json::Object(fields) => fields,
        _ => return Err("the header is no object".into()),
    };
    let mut tensors = HashMap::new();
    for (name, field) in fields.iter().filter(|(name, _)| wanted(name)) {
        let numbers = |key: &str| -> Result<Vec<usize>> {
            match field.get(key) {
                Some(Json::List(items)) => items
                    .iter()
                    .map(|n| match n {
                        Json::Number(n) if *n >= 0.0 => Ok(*n as usize),
                        _ => Err(format!("{name}: {key}").into()),
                    })
                    .collect(),
                _ => Err(format!("{name}: {key}").into()),
            }
        };
        if !matches!(field.get("dtype"), Some(Json::Text(t)) if t == "BF16") {
            return Err(format!("{name}: only bf16 is read").into());
        }
        let (shape, range) = (numbers("shape")?, numbers("data_offsets")?);
        let (rows, cols) = match shape[..] {
            [n] => (1, n),
            [r, c] => (r, c),
            _ => return Err(format!("{name}: shape {shape:?}").into()),
        };
        if range.len() != 2 {
            return Err(format!("{name}: data_offsets").into());
        }
        let begin = end.checked_add(range[0]).ok_or("offset")?;
        let stop = end.checked_add(range[1]).ok_or("offset")?;
        let raw = bytes.get(begin..stop).ok_or_else(|| format!("{name}: outside the file"))?;
        if rows.checked_mul(cols).and_then(|n| n.checked_mul(2)) != Some(raw.len()) {
            return Err(format!("{name}: its shape and its bytes differ").into());
        }
        let data = raw
            .chunks_exact(2)
            .map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16))
            .collect();
        tensors.insert(name.clone(), Tensor { data, rows, cols });
    }
    Ok(tensors)
}
