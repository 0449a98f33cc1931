//! Where experts come from: files, or the host's own weights.
use crate::error::{check, Error, Result};
use moert_sys as sys;
use std::ffi::{c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::ptr;

/// How router logits become the experts of a token and their weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Softmax over all, then the k highest (Qwen, OLMoE).
    SoftmaxTopK,
    /// The k highest, then softmax over them (Mixtral).
    TopKSoftmax,
    /// Sigmoid + bias, best groups, top-k (DeepSeek-V3).
    SigmoidGrouped,
    /// Two masked-softmax picks (Phi-3.5-MoE).
    SparseMixer,
    /// As the grouped sigmoid, with the square root of the softplus (DeepSeek-V4).
    SqrtSoftplusGrouped,
    /// The k highest, weights their sigmoids (Llama-4).
    TopKSigmoid,
    /// The host's own: no gate is read, layer calls bring their routing.
    External,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    Silu,
    Gelu,
    GeluTanh,
    Relu2,
}

/// One MoE layer: `moert_layer_spec`, with the same defaults.
#[derive(Clone, Debug)]
pub struct LayerSpec {
    /// The host's own number, ascending.
    pub model_layer: i32,
    pub num_experts: i32,
    pub top_k: i32,
    pub hidden: i64,
    pub intermediate: i64,
    /// 0: no shared expert; several are one wide one.
    pub shared_intermediate: i64,
    pub shared_gate: bool,
    pub routing: Routing,
    pub activation: Activation,
    pub renormalize: bool,
    pub selection_bias: bool,
    pub num_groups: i32,
    pub top_groups: i32,
    pub scaling: f32,
    pub logit_bias: bool,
    pub weight_input: bool,
    pub expert_scales: bool,
    pub ungated: bool,
    pub expert_bias: bool,
    pub activation_alpha: f32,
    pub activation_limit: f32,
    pub up_offset: f32,
}

impl Default for LayerSpec {
    fn default() -> LayerSpec {
        LayerSpec {
            model_layer: 0,
            num_experts: 1,
            top_k: 1,
            hidden: 0,
            intermediate: 0,
            shared_intermediate: 0,
            shared_gate: false,
            routing: Routing::SoftmaxTopK,
            activation: Activation::Silu,
            renormalize: false,
            selection_bias: false,
            num_groups: 1,
            top_groups: 1,
            scaling: 1.0,
            logit_bias: false,
            weight_input: false,
            expert_scales: false,
            ungated: false,
            expert_bias: false,
            activation_alpha: 1.0,
            activation_limit: 0.0,
            up_offset: 0.0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    GateProj,
    UpProj,
    DownProj,
    Router,
    SelectionBias,
    SharedGate,
    LogitBias,
    ExpertScales,
    GateBias,
    UpBias,
    DownBias,
}

/// Rows `first_row..first_row + rows` of a row-major matrix are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    pub layer: i32,
    /// -1: the shared expert.
    pub expert: i32,
    pub part: Part,
    pub first_row: i64,
    pub rows: i64,
    pub cols: i64,
}

/// A host's own weights, in fp32. Called from several threads at once.
pub trait Weights: Send + Sync + 'static {
    /// Fills `dst` (rows x cols).
    fn read(&self, read: &Read, dst: &mut [f32]) -> std::result::Result<(), String>;
}

/// Thread-safe, and cheap to share: an engine keeps its own reference.
pub struct Source {
    pub(crate) handle: *mut sys::moert_source,
}

unsafe impl Send for Source {}
unsafe impl Sync for Source {}

impl Drop for Source {
    fn drop(&mut self) {
        unsafe { sys::moert_source_destroy(self.handle) }
    }
}

pub(crate) fn c_string(what: &str, text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error {
        code: crate::Code::InvalidArgument,
        origin: what.into(),
        message: "the text has a NUL inside".into(),
    })
}

impl Source {
    /// A checkpoint directory as published on Hugging Face.
    pub fn open(model_dir: &Path) -> Result<Source> {
        let dir = c_string("model_dir", &model_dir.to_string_lossy())?;
        let mut handle = ptr::null_mut();
        check(|e| unsafe { sys::moert_source_open(dir.as_ptr(), ptr::null(), &mut handle, e) })?;
        Ok(Source { handle })
    }

    /// An expert pack, as moert-pack writes them.
    pub fn open_pack(pack_dir: &Path) -> Result<Source> {
        let dir = c_string("pack_dir", &pack_dir.to_string_lossy())?;
        let mut handle = ptr::null_mut();
        check(|e| unsafe { sys::moert_source_open_pack(dir.as_ptr(), &mut handle, e) })?;
        Ok(Source { handle })
    }

    /// A source over weights of the host's own.
    pub fn from_weights<W: Weights>(
        name: &str,
        layers: &[LayerSpec],
        weights: W,
    ) -> Result<Source> {
        let name = c_string("name", name)?;
        let specs: Vec<sys::moert_layer_spec> = layers.iter().map(to_c).collect();
        let mut callbacks: sys::moert_source_callbacks = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&callbacks) as u64;
        unsafe { sys::moert_source_callbacks_init(&mut callbacks, size) };
        let weights = Box::into_raw(Box::new(weights));
        callbacks.user_data = weights as *mut c_void;
        callbacks.read = Some(read_trampoline::<W>);
        callbacks.destroy = Some(destroy_trampoline::<W>);
        callbacks.weights_dtype = sys::MOERT_F32;
        let mut handle = ptr::null_mut();
        let made = check(|e| unsafe {
            sys::moert_source_create(
                name.as_ptr(),
                specs.as_ptr(),
                specs.len() as u64,
                &callbacks,
                &mut handle,
                e,
            )
        });
        if let Err(error) = made {
            drop(unsafe { Box::from_raw(weights) }); // the library did not take it
            return Err(error);
        }
        Ok(Source { handle })
    }

    pub fn layer_count(&self) -> i32 {
        unsafe { sys::moert_source_layer_count(self.handle) }
    }
}

pub(crate) fn to_c(layer: &LayerSpec) -> sys::moert_layer_spec {
    let mut spec: sys::moert_layer_spec = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&spec) as u64;
    unsafe { sys::moert_layer_spec_init(&mut spec, size) };
    spec.model_layer = layer.model_layer;
    spec.num_experts = layer.num_experts;
    spec.top_k = layer.top_k;
    spec.hidden = layer.hidden;
    spec.intermediate = layer.intermediate;
    spec.shared_intermediate = layer.shared_intermediate;
    spec.shared_gate = layer.shared_gate as i32;
    spec.renormalize = layer.renormalize as i32;
    spec.routing = match layer.routing {
        Routing::SoftmaxTopK => sys::MOERT_ROUTING_SOFTMAX_TOPK,
        Routing::TopKSoftmax => sys::MOERT_ROUTING_TOPK_SOFTMAX,
        Routing::SigmoidGrouped => sys::MOERT_ROUTING_SIGMOID_GROUPED,
        Routing::SparseMixer => sys::MOERT_ROUTING_SPARSEMIXER,
        Routing::SqrtSoftplusGrouped => sys::MOERT_ROUTING_SQRT_SOFTPLUS_GROUPED,
        Routing::TopKSigmoid => sys::MOERT_ROUTING_TOPK_SIGMOID,
        Routing::External => sys::MOERT_ROUTING_EXTERNAL,
    };
    spec.activation = match layer.activation {
        Activation::Silu => sys::MOERT_SILU,
        Activation::Gelu => sys::MOERT_GELU,
        Activation::GeluTanh => sys::MOERT_GELU_TANH,
        Activation::Relu2 => sys::MOERT_RELU2,
    };
    spec.selection_bias = layer.selection_bias as i32;
    spec.num_groups = layer.num_groups;
    spec.top_groups = layer.top_groups;
    spec.scaling = layer.scaling;
    spec.logit_bias = layer.logit_bias as i32;
    spec.weight_input = layer.weight_input as i32;
    spec.expert_scales = layer.expert_scales as i32;
    spec.ungated = layer.ungated as i32;
    spec.expert_bias = layer.expert_bias as i32;
    spec.activation_alpha = layer.activation_alpha;
    spec.activation_limit = layer.activation_limit;
    spec.up_offset = layer.up_offset;
    spec
}

unsafe extern "C" fn read_trampoline<W: Weights>(
    user_data: *mut c_void,
    read: *const sys::moert_read,
    failure: *mut sys::moert_failure,
) -> sys::moert_code {
    let fail = |message: &str| {
        if let Ok(message) = CString::new(message.replace('\0', " ")) {
            unsafe { sys::moert_failure_set(failure, message.as_ptr()) };
        }
        sys::MOERT_INTERNAL
    };
    let (weights, r) = unsafe { (&*(user_data as *const W), &*read) };
    let part = match r.part {
        sys::MOERT_PART_GATE_PROJ => Part::GateProj,
        sys::MOERT_PART_UP_PROJ => Part::UpProj,
        sys::MOERT_PART_DOWN_PROJ => Part::DownProj,
        sys::MOERT_PART_ROUTER => Part::Router,
        sys::MOERT_PART_SELECTION_BIAS => Part::SelectionBias,
        sys::MOERT_PART_SHARED_GATE => Part::SharedGate,
        sys::MOERT_PART_LOGIT_BIAS => Part::LogitBias,
        sys::MOERT_PART_EXPERT_SCALES => Part::ExpertScales,
        sys::MOERT_PART_GATE_BIAS => Part::GateBias,
        sys::MOERT_PART_UP_BIAS => Part::UpBias,
        sys::MOERT_PART_DOWN_BIAS => Part::DownBias,
        _ => return fail("unknown part"),
    };
    let what = Read {
        layer: r.layer,
        expert: r.expert,
        part,
        first_row: r.first_row,
        rows: r.dst.rows,
        cols: r.dst.cols,
    };
    let elements = (r.dst.rows * r.dst.cols) as usize;
    let dst = unsafe { std::slice::from_raw_parts_mut(r.dst.data as *mut f32, elements) };
    // A panic must not unwind into C.
    match catch_unwind(AssertUnwindSafe(|| weights.read(&what, dst))) {
        Ok(Ok(())) => sys::MOERT_OK,
        Ok(Err(message)) => {
            fail(&message);
            sys::MOERT_DATA_LOSS
        }
        Err(_) => fail("Weights::read panicked"),
    }
}

unsafe extern "C" fn destroy_trampoline<W: Weights>(user_data: *mut c_void) {
    let weights = unsafe { Box::from_raw(user_data as *mut W) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(weights)));
}
