//! Policies of the host as a trait. What a method does not decide, the strategy's own policy does.
use moert_sys as sys;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// One expert that may be evicted; times are layer calls.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub layer: i32,
    pub expert: i32,
    pub last_used: i64,
    pub inserted: i64,
    pub uses: i64,
    pub unused_prefetch: bool,
}

/// Who leaves?
pub enum Victim {
    Index(usize),
    /// Only a prefetch may be refused.
    Refuse,
    Default,
}

/// Called from one thread at a time while the engine is locked: must not call the engine.
pub trait Policies: Send + 'static {
    /// Every layer call's true routing: tokens of each expert.
    fn observe(&mut self, _layer: i32, _counts: &[i32]) {}
    fn victim(&mut self, _candidates: &[Candidate], _for_prefetch: bool) -> Victim {
        Victim::Default
    }
    /// Experts of `target_layer` to prefetch, best first; None: the strategy's own choice.
    fn rank(&mut self, _target_layer: i32, _counts: &[i32]) -> Option<Vec<i32>> {
        None
    }
}

pub(crate) fn vtable(policies: Box<dyn Policies>) -> sys::moert_policies {
    let mut c: sys::moert_policies = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_policies_init(&mut c, size) };
    // A fat pointer does not fit into user_data: one more box.
    c.user_data = Box::into_raw(Box::new(policies)) as *mut c_void;
    c.destroy = Some(destroy);
    c.observe = Some(observe);
    c.residency_victim = Some(victim);
    c.prefetch_rank = Some(rank);
    c
}

pub(crate) unsafe fn take_back(c: &sys::moert_policies) {
    unsafe { destroy(c.user_data) }
}

unsafe fn host<'a>(user_data: *mut c_void) -> &'a mut Box<dyn Policies> {
    unsafe { &mut *(user_data as *mut Box<dyn Policies>) }
}

unsafe extern "C" fn destroy(user_data: *mut c_void) {
    let policies = unsafe { Box::from_raw(user_data as *mut Box<dyn Policies>) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(policies)));
}

unsafe extern "C" fn observe(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    routing: *const sys::moert_routing_view,
) {
    let (c, r) = unsafe { (&*context, &*routing) };
    let counts = unsafe { std::slice::from_raw_parts(r.counts, r.num_experts as usize) };
    let _ = catch_unwind(AssertUnwindSafe(|| unsafe { host(user_data) }.observe(c.layer, counts)));
}

unsafe extern "C" fn victim(
    user_data: *mut c_void,
    snapshot: *const sys::moert_victim_snapshot,
    chosen: *mut i64,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let raw = unsafe { std::slice::from_raw_parts(s.candidates, s.num_candidates as usize) };
    let candidates: Vec<Candidate> = raw
        .iter()
        .map(|v| Candidate {
            layer: v.layer,
            expert: v.expert,
            last_used: v.last_used,
            inserted: v.inserted,
            uses: v.uses,
            unused_prefetch: v.unused_prefetch != 0,
        })
        .collect();
    let decide = || unsafe { host(user_data) }.victim(&candidates, s.for_prefetch != 0);
    match catch_unwind(AssertUnwindSafe(decide)) {
        Ok(Victim::Index(i)) => unsafe { *chosen = i as i64 },
        Ok(Victim::Refuse) => unsafe { *chosen = -1 },
        Ok(Victim::Default) => return sys::MOERT_UNIMPLEMENTED,
        Err(_) => return sys::MOERT_INTERNAL,
    }
    sys::MOERT_OK
}

unsafe extern "C" fn rank(
    user_data: *mut c_void,
    snapshot: *const sys::moert_prefetch_snapshot,
    experts: *mut i32,
    capacity: i32,
    count: *mut i32,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let r = &s.routing;
    let counts = unsafe { std::slice::from_raw_parts(r.counts, r.num_experts as usize) };
    let decide = || unsafe { host(user_data) }.rank(s.target_layer, counts);
    match catch_unwind(AssertUnwindSafe(decide)) {
        Ok(Some(ranked)) => {
            let n = ranked.len().min(capacity as usize);
            unsafe {
                std::ptr::copy_nonoverlapping(ranked.as_ptr(), experts, n);
                *count = n as i32;
            }
            sys::MOERT_OK
        }
        Ok(None) => sys::MOERT_UNIMPLEMENTED,
        Err(_) => sys::MOERT_INTERNAL,
    }
}
