//! Records in the host's own format, where they lie, and which of them an engine has.
use crate::error::{check, Code, Error, Result};
use crate::source::{c_string, to_c, LayerSpec, Source};
use crate::step::{tensor, Step};
use moert_sys as sys;
use std::ffi::{c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::{ptr, slice};

/// One part of every expert of a layer: in a file, or read by `Records::read`.
#[derive(Clone, Debug)]
pub struct RecordPart {
    pub layer: i32,
    /// The bytes of one expert.
    pub bytes: i64,
    /// The alignment of its address in a slot: a power of two up to 4096.
    pub alignment: i64,
    /// Index into the files, and where expert 0 begins there; others follow.
    pub file: Option<(i32, i64)>,
}

/// Reads parts that are in no file. Called from several threads at once.
pub trait Records: Send + Sync + 'static {
    fn read(
        &self,
        layer: i32,
        expert: i32,
        part: i32,
        dst: &mut [u8],
    ) -> std::result::Result<(), String>;
}

/// A part of every layer, for expert and tensor parallelism: outputs are partial sums. Zeros mean
/// all; the default is the whole model.
#[derive(Clone, Debug)]
pub struct Shard {
    pub first_expert: i64,
    pub num_experts: i64,
    /// For each layer its experts, ascending, in place of the range; empty: the range.
    pub experts: Vec<Vec<i32>>,
    /// The first channel of the intermediate dimension.
    pub first_channel: i64,
    pub num_channels: i64,
    pub shared_experts: bool,
}

impl Default for Shard {
    fn default() -> Shard {
        Shard {
            first_expert: 0,
            num_experts: 0,
            experts: Vec::new(),
            first_channel: 0,
            num_channels: 0,
            shared_experts: true,
        }
    }
}

impl Shard {
    /// The list that the struct points to comes with it.
    pub(crate) fn to_c(&self) -> (sys::moert_shard, Vec<i32>) {
        let mut c: sys::moert_shard = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_shard_init(&mut c, size) };
        c.first_expert = self.first_expert;
        c.num_experts = self.num_experts;
        c.first_channel = self.first_channel;
        c.num_channels = self.num_channels;
        c.shared_experts = self.shared_experts as i64;
        let mut list = Vec::new();
        for layer in &self.experts {
            list.push(layer.len() as i32);
            list.extend(layer);
        }
        if !list.is_empty() {
            c.expert_list = list.as_ptr(); // its elements stay where they are when it is moved
            c.expert_list_size = list.len() as i64;
        }
        (c, list)
    }
}

unsafe extern "C" fn read_part<R: Records>(
    user_data: *mut c_void,
    layer: i32,
    expert: i32,
    part: i32,
    dst: *mut c_void,
    bytes: i64,
    failure: *mut sys::moert_failure,
) -> sys::moert_code {
    let records = unsafe { &*(user_data as *const R) };
    let dst = unsafe { slice::from_raw_parts_mut(dst as *mut u8, bytes as usize) };
    // A panic must not unwind into C.
    let read = catch_unwind(AssertUnwindSafe(|| records.read(layer, expert, part, dst)));
    let (code, message) = match read {
        Ok(Ok(())) => return sys::MOERT_OK,
        Ok(Err(message)) => (sys::MOERT_DATA_LOSS, message),
        Err(_) => (sys::MOERT_INTERNAL, "Records::read panicked".into()),
    };
    if let Ok(message) = CString::new(message.replace('\0', " ")) {
        unsafe { sys::moert_failure_set(failure, message.as_ptr()) };
    }
    code
}

unsafe extern "C" fn destroy<R: Records>(user_data: *mut c_void) {
    let records = unsafe { Box::from_raw(user_data as *mut R) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(records)));
}

fn part_to_c(part: &RecordPart) -> sys::moert_opaque_part {
    let mut c: sys::moert_opaque_part = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_opaque_part_init(&mut c, size) };
    c.layer = part.layer;
    c.bytes = part.bytes;
    c.alignment = part.alignment;
    if let Some((file, offset)) = part.file {
        c.file = file;
        c.offset = offset;
    }
    c
}

impl Source {
    /// Records in the host's own format. layers: with `Routing::External`. parts: of all layers.
    /// Products over them are the host's: `Step::fetch`.
    pub fn from_records<R: Records>(
        name: &str,
        layers: &[LayerSpec],
        parts: &[RecordPart],
        files: &[&Path],
        records: R,
    ) -> Result<Source> {
        let name = c_string("name", name)?;
        let specs: Vec<_> = layers.iter().map(to_c).collect();
        let parts: Vec<_> = parts.iter().map(part_to_c).collect();
        let files: Vec<CString> =
            files.iter().map(|f| c_string("files", &f.to_string_lossy())).collect::<Result<_>>()?;
        let paths: Vec<_> = files.iter().map(|f| f.as_ptr()).collect();
        let mut options: sys::moert_opaque_options = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&options) as u64;
        unsafe { sys::moert_opaque_options_init(&mut options, size) };
        options.files = paths.as_ptr();
        options.num_files = paths.len() as i64;
        let records = Box::into_raw(Box::new(records));
        options.user_data = records as *mut c_void;
        options.read = Some(read_part::<R>);
        options.destroy = Some(destroy::<R>);
        let mut handle = ptr::null_mut();
        let made = check(|e| unsafe {
            sys::moert_source_create_opaque(
                name.as_ptr(),
                specs.as_ptr(),
                specs.len() as u64,
                parts.as_ptr(),
                parts.len() as u64,
                &options,
                &mut handle,
                e,
            )
        });
        if let Err(error) = made {
            drop(unsafe { Box::from_raw(records) }); // the library did not take it
            return Err(error);
        }
        Ok(Source { handle })
    }

    /// Checks that the shards own everything exactly once; errors name what is missing or twice.
    pub fn check_shards(&self, shards: &[Shard]) -> Result<()> {
        let kept: Vec<_> = shards.iter().map(Shard::to_c).collect();
        let all: Vec<_> = kept.iter().map(|(c, _)| *c).collect();
        check(|e| unsafe {
            sys::moert_shards_check(self.handle, all.as_ptr(), all.len() as i64, e)
        })
    }
}

/// Experts of one layer, pinned where they lie while this lives.
pub struct Slots<'step> {
    step: &'step Step<'step>,
    layer: i32,
    experts: usize,
    c: sys::moert_slots,
}

// The bytes that it shows are not written while it lives.
unsafe impl Send for Slots<'_> {}
unsafe impl Sync for Slots<'_> {}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        unsafe { sys::moert_slots_release(self.step.handle, self.layer, ptr::null_mut()) };
        self.step.fetched().remove(&self.layer);
    }
}

impl Slots<'_> {
    /// None: the expert was not asked for.
    pub fn slot(&self, expert: i32) -> Option<usize> {
        if expert < 0 || expert as usize >= self.experts {
            return None;
        }
        let slot = unsafe { *self.c.slot_of_expert.add(expert as usize) };
        usize::try_from(slot).ok()
    }

    /// The bytes of one part of an expert, in place. None: as above, or they are in device memory.
    pub fn part(&self, expert: i32, part: usize) -> Option<&[u8]> {
        let slot = self.slot(expert)?;
        if part as i64 >= self.c.parts || !self.c.device_slot_of_expert.is_null() {
            return None;
        }
        let base = self.c.base[part] as *const u8;
        // Host memory, pinned.
        Some(unsafe {
            slice::from_raw_parts(
                base.add(slot * self.c.stride[part] as usize),
                self.c.bytes[part] as usize,
            )
        })
    }
}

impl<'engine> Step<'engine> {
    /// Loads and pins the experts named by `ids`, rows x k (-1: none), for hosts that compute the
    /// products themselves. A layer's slots are dropped before it is fetched again.
    pub fn fetch(&self, layer: i32, ids: &[i32]) -> Result<Slots<'_>> {
        let invalid = |code, message| Error { code, origin: "Step::fetch".into(), message };
        if ids.is_empty() || ids.len() as i64 % self.rows != 0 {
            let message = format!("{} ids for {} rows", ids.len(), self.rows);
            return Err(invalid(Code::InvalidArgument, message));
        }
        let experts = self.engine.layer(layer)?.num_experts as usize;
        if !self.fetched().insert(layer) {
            let message = format!("layer {layer}: drop its slots first");
            return Err(invalid(Code::FailedPrecondition, message));
        }
        let mut fetch: sys::moert_fetch = unsafe { std::mem::zeroed() };
        let mut slots: sys::moert_slots = unsafe { std::mem::zeroed() };
        unsafe {
            sys::moert_fetch_init(&mut fetch, std::mem::size_of_val(&fetch) as u64);
            sys::moert_slots_init(&mut slots, std::mem::size_of_val(&slots) as u64);
        }
        fetch.ids = tensor(ids.as_ptr(), self.rows, ids.len() as i64 / self.rows, sys::MOERT_I32);
        let got =
            check(|e| unsafe { sys::moert_layer_fetch(self.handle, layer, &fetch, &mut slots, e) });
        if let Err(error) = got {
            self.fetched().remove(&layer);
            return Err(error);
        }
        Ok(Slots { step: self, layer, experts, c: slots })
    }
}
