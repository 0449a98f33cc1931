//! Policies of the host as a trait. The strategy's own policy decides where a method does not.
//!
//! Methods are called from one thread at a time while the engine is locked: they must not call the
//! engine, and should not wait. They answer from what they are shown and what they remember.
use crate::engine::Phase;
use moert_sys as sys;
use std::ffi::c_void;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::slice;

/// Which decisions the host makes. A seam that is false is not asked, and stays the strategy's.
/// Routing, precision and placement can reach the output: with one of them an engine is not exact.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seams {
    pub routing: bool,
    pub prefetch: bool,
    /// Capacity of the layers.
    pub capacity: bool,
    /// The eviction order.
    pub eviction: bool,
    pub precision: bool,
    /// The experts that are high from the start.
    pub initial_high: bool,
    /// The experts that a smaller budget demotes first.
    pub worth: bool,
    pub placement: bool,
}

/// When and where a decision is asked.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Steps begun before this one.
    pub step: i64,
    /// The engine's clock.
    pub now_ns: i64,
    pub layer: i32,
    pub phase: Phase,
    /// One a row of the step; empty if not given.
    pub request_ids: &'a [i64],
}

/// The true routing of a layer call.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    pub tokens: usize,
    pub top_k: usize,
    /// [tokens, top_k], highest weight first.
    pub ids: &'a [i32],
    pub weights: &'a [f32],
    /// [tokens, experts], or None when the host gave a routing without.
    pub scores: Option<&'a [f32]>,
    /// [experts], tokens of each.
    pub counts: &'a [i32],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// The model's own routing.
    TopK,
    /// Near the threshold, resident experts are preferred; lossy.
    ExpertCache {
        alpha: f32,
        max_slot_share: f32,
        max_mass_share: f32,
        second_pass: bool,
        own_score_weights: bool,
    },
}

/// The inputs of a prediction; flags are 0 or 1, one per expert of the target layer.
#[derive(Clone, Copy, Debug)]
pub struct Prefetch<'a> {
    pub context: Context<'a>,
    pub routing: Routing<'a>,
    pub target_layer: i32,
    /// [tokens, experts of the target] of its gate, if `wants_next_gate`.
    pub predicted_scores: Option<&'a [f32]>,
    pub resident: &'a [u8],
    pub usable: &'a [u8],
    pub in_flight: &'a [u8],
    /// Slots of the target layer.
    pub target_capacity: i64,
    /// Measured: time until the target asks, waiting excluded, and to transfer one of its experts.
    pub window_ns: i64,
    pub transfer_ns: i64,
}

/// An expert of the target layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    pub expert: i32,
    /// Higher is fetched earlier.
    pub score: f32,
    /// Tokens expected to use it; 0: cannot tell.
    pub tokens: i32,
}

/// The inputs of a capacity decision.
#[derive(Clone, Copy, Debug)]
pub struct Capacity<'a> {
    /// The slots of the pool.
    pub slots: i64,
    pub layers: usize,
    /// The measured effect of prefetching on each layer: the share of its lookups that predictions
    /// name, and the transfers that fit before it asks. Empty: no prefetch.
    pub prefetch: &'a [sys::moert_prefetch_outlook],
}

/// One expert that may be evicted; times are layer calls.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    pub layer: i32,
    pub expert: i32,
    pub last_used: i64,
    pub inserted: i64,
    pub uses: i64,
    /// The tokens of the last call that used it.
    pub tokens: i32,
    pub unused_prefetch: bool,
}

/// Eviction order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    Index(usize),
    /// Only a prefetch may be refused.
    Refuse,
    Default,
}

/// Experts of all layers, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Precision<'a> {
    pub context: Context<'a>,
    /// Tokens since the last call.
    pub selections: &'a [i64],
    /// 1: the high version is there or on its way.
    pub high: &'a [u8],
    /// [layers], experts of a layer that fit in high.
    pub high_capacity: &'a [i32],
}

/// Why bytes are about to be moved.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    pub context: Context<'a>,
    pub expert: i32,
    pub tokens: i32,
    pub layer_tokens: i64,
    pub prefetch: bool,
    pub num_versions: i32,
}

/// An expert that is needed and not there.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    pub expert: i32,
    pub tokens: i32,
    /// Summed routing weight.
    pub mass: f32,
    pub bytes: i64,
    pub load_ns: i64,
    /// Negative: there is no CPU beside the fast tier.
    pub cpu_ns: i64,
    /// A prefetch of it is on its way.
    pub arriving: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    Load,
    Cpu,
}

/// None means: as the strategy does. It is counted (`policy_fallbacks`), as are panics and answers out
/// of range.
pub trait Policies: Send + 'static {
    fn seams(&self) -> Seams;

    /// Every layer call's true routing, before any decision that depends on it.
    fn observe(&mut self, _context: &Context, _routing: &Routing) {}

    /// `own` is the strategy's rule.
    fn routing_rule(&mut self, _context: &Context, _own: Rule) -> Option<Rule> {
        None
    }
    /// Asked once, when the engine is made: shall predictions see the next gate's scores?
    fn wants_next_gate(&self) -> bool {
        false
    }
    /// The same from the input that `StepOptions::predict_next` tells?
    fn wants_resident_forward(&self) -> bool {
        false
    }
    /// Experts of the target layer to prefetch, best first.
    fn rank(&mut self, _prefetch: &Prefetch) -> Option<Vec<Prediction>> {
        None
    }
    /// Slots of each layer; their sum is at most `capacity.slots`.
    fn capacity(&mut self, _capacity: &Capacity) -> Option<Vec<i32>> {
        None
    }
    /// At the beginning of a step: true to be asked for new capacities.
    fn wants_capacity(&mut self, _context: &Context) -> Option<bool> {
        None
    }
    fn victim(
        &mut self,
        _context: &Context,
        _candidates: &[Candidate],
        _for_prefetch: bool,
    ) -> Victim {
        Victim::Default
    }
    /// With eviction or capacity among the seams: an expert came, an expert left.
    fn inserted(&mut self, _layer: i32, _expert: i32, _prefetch: bool) {}
    fn evicted(&mut self, _layer: i32, _expert: i32) {}
    /// Where every expert is resident in one of two versions: indices of those that are high from the
    /// start, at most high_capacity[l] of layer l.
    fn initial_high(&mut self, _high_capacity: &[i32], _total_experts: i64) -> Vec<i64> {
        Vec::new()
    }
    /// Indices of experts to promote, best first, and to demote.
    fn precision(&mut self, _precision: &Precision) -> Option<(Vec<i64>, Vec<i64>)> {
        None
    }
    /// The worth of each expert in high: a smaller budget demotes those worth least.
    fn worth(&mut self, _precision: &Precision) -> Option<Vec<f64>> {
        None
    }
    /// The version a load should bring, 0 the one with most bits.
    fn transfer_version(&mut self, _transfer: &Transfer) -> Option<i32> {
        None
    }
    /// Shall lower versions that a call used be replaced by the best?
    fn upgrades(&mut self, _context: &Context) -> Option<bool> {
        None
    }
    /// One decision per miss. link_busy_ns: until the transfers under way have arrived.
    fn placement(
        &mut self,
        _context: &Context,
        _misses: &[Miss],
        _link_busy_ns: i64,
    ) -> Option<Vec<Placement>> {
        None
    }
    /// Shall experts that the CPU computed be loaded while the link is idle (into free slots)?
    fn backfills(&mut self, _context: &Context, _free_slots: bool) -> Option<bool> {
        None
    }
}

pub(crate) fn vtable(policies: Box<dyn Policies>) -> sys::moert_policies {
    let mut c: sys::moert_policies = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_policies_init(&mut c, size) };
    let seams = policies.seams();
    c.prefetch_wants_next_gate = policies.wants_next_gate() as i32;
    c.prefetch_wants_resident_forward = policies.wants_resident_forward() as i32;
    // A fat pointer does not fit into user_data: one more box.
    c.user_data = Box::into_raw(Box::new(policies)) as *mut c_void;
    c.destroy = Some(destroy);
    c.observe = Some(observe);
    if seams.routing {
        c.routing_rule = Some(routing_rule);
    }
    if seams.prefetch {
        c.prefetch_rank = Some(rank);
    }
    if seams.capacity {
        c.residency_capacity = Some(capacity);
        c.residency_wants_capacity = Some(wants_capacity);
    }
    if seams.eviction {
        c.residency_victim = Some(victim);
    }
    if seams.eviction || seams.capacity {
        c.residency_insert = Some(inserted);
        c.residency_evict = Some(evicted);
    }
    if seams.precision {
        c.precision_decide = Some(precision);
        c.precision_upgrades = Some(upgrades);
        c.precision_transfer = Some(transfer_version);
    }
    if seams.initial_high {
        c.precision_initial = Some(initial_high);
    }
    if seams.worth {
        c.precision_worth = Some(worth);
    }
    if seams.placement {
        c.placement = Some(placement);
        c.placement_backfills = Some(backfills);
    }
    c
}

pub(crate) unsafe fn take_back(c: &sys::moert_policies) {
    unsafe { destroy(c.user_data) }
}

unsafe extern "C" fn destroy(user_data: *mut c_void) {
    let policies = unsafe { Box::from_raw(user_data as *mut Box<dyn Policies>) };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(policies)));
}

/// Asks the host: None if it leaves the decision, an error if it panics.
unsafe fn ask<T>(
    user_data: *mut c_void,
    question: impl FnOnce(&mut dyn Policies) -> Option<T>,
) -> Result<T, sys::moert_code> {
    let host = unsafe { &mut *(user_data as *mut Box<dyn Policies>) };
    match catch_unwind(AssertUnwindSafe(|| question(host.as_mut()))) {
        Ok(Some(answer)) => Ok(answer),
        Ok(None) => Err(sys::MOERT_UNIMPLEMENTED),
        Err(_) => Err(sys::MOERT_INTERNAL),
    }
}

/// A borrowed array of the library; empty if it is NULL.
pub(crate) unsafe fn array<'a, T>(data: *const T, count: i64) -> &'a [T] {
    if data.is_null() || count <= 0 {
        return &[];
    }
    unsafe { slice::from_raw_parts(data, count as usize) }
}

unsafe fn context_of<'a>(c: &'a sys::moert_policy_context) -> Context<'a> {
    Context {
        step: c.step,
        now_ns: c.now_ns,
        layer: c.layer,
        phase: if c.phase == sys::MOERT_PREFILL { Phase::Prefill } else { Phase::Decode },
        request_ids: unsafe { array(c.request_ids, c.num_request_ids) },
    }
}

unsafe fn routing_of<'a>(r: &'a sys::moert_routing_view) -> Routing<'a> {
    let slots = r.tokens * r.top_k as i64;
    let scores = unsafe { array(r.scores, r.tokens * r.num_experts as i64) };
    Routing {
        tokens: r.tokens as usize,
        top_k: r.top_k as usize,
        ids: unsafe { array(r.ids, slots) },
        weights: unsafe { array(r.weights, slots) },
        scores: if scores.is_empty() { None } else { Some(scores) },
        counts: unsafe { array(r.counts, r.num_experts as i64) },
    }
}

unsafe extern "C" fn observe(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    routing: *const sys::moert_routing_view,
) {
    let (c, r) = unsafe { (context_of(&*context), routing_of(&*routing)) };
    let _ = unsafe {
        ask(user_data, |host| {
            host.observe(&c, &r);
            Some(())
        })
    };
}

unsafe extern "C" fn routing_rule(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    rule: *mut sys::moert_routing_rule,
) -> sys::moert_code {
    let (c, r) = unsafe { (context_of(&*context), &mut *rule) };
    let own = if r.kind == sys::MOERT_RULE_EXPERT_CACHE {
        Rule::ExpertCache {
            alpha: r.alpha,
            max_slot_share: r.max_slot_share,
            max_mass_share: r.max_mass_share,
            second_pass: r.second_pass != 0,
            own_score_weights: r.own_score_weights != 0,
        }
    } else {
        Rule::TopK
    };
    match unsafe { ask(user_data, |host| host.routing_rule(&c, own)) } {
        Ok(Rule::TopK) => r.kind = sys::MOERT_RULE_TOPK,
        Ok(Rule::ExpertCache {
            alpha,
            max_slot_share,
            max_mass_share,
            second_pass,
            own_score_weights,
        }) => {
            r.kind = sys::MOERT_RULE_EXPERT_CACHE;
            r.alpha = alpha;
            r.max_slot_share = max_slot_share;
            r.max_mass_share = max_mass_share;
            r.second_pass = second_pass as i32;
            r.own_score_weights = own_score_weights as i32;
        }
        Err(code) => return code,
    }
    sys::MOERT_OK
}

unsafe extern "C" fn rank(
    user_data: *mut c_void,
    snapshot: *const sys::moert_prefetch_snapshot,
    to: *mut sys::moert_prediction,
    capacity: i32,
    count: *mut i32,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let (context, routing) = unsafe { (context_of(&*s.context), routing_of(&*s.routing)) };
    let targets = s.target_experts as i64;
    let scores = unsafe { array(s.predicted_scores, routing.tokens as i64 * targets) };
    let view = Prefetch {
        context,
        routing,
        target_layer: s.target_layer,
        predicted_scores: if scores.is_empty() { None } else { Some(scores) },
        resident: unsafe { array(s.resident, targets) },
        usable: unsafe { array(s.usable, targets) },
        in_flight: unsafe { array(s.in_flight, targets) },
        target_capacity: s.target_capacity,
        window_ns: s.window_ns,
        transfer_ns: s.transfer_ns,
    };
    match unsafe { ask(user_data, |host| host.rank(&view)) } {
        Ok(ranked) => {
            let n = ranked.len().min(capacity as usize);
            for (i, p) in ranked.iter().take(n).enumerate() {
                let c =
                    sys::moert_prediction { expert: p.expert, score: p.score, tokens: p.tokens };
                unsafe { *to.add(i) = c };
            }
            unsafe { *count = n as i32 };
            sys::MOERT_OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn capacity(
    user_data: *mut c_void,
    snapshot: *const sys::moert_capacity_snapshot,
    capacity: *mut i32,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let layers = s.num_layers as usize;
    let view =
        Capacity { slots: s.slots, layers, prefetch: unsafe { array(s.prefetch, s.num_layers) } };
    match unsafe { ask(user_data, |host| host.capacity(&view)) } {
        Ok(slots) if slots.len() == layers => {
            unsafe { std::ptr::copy_nonoverlapping(slots.as_ptr(), capacity, layers) };
            sys::MOERT_OK
        }
        Ok(_) => sys::MOERT_INVALID_ARGUMENT,
        Err(code) => code,
    }
}

unsafe extern "C" fn victim(
    user_data: *mut c_void,
    snapshot: *const sys::moert_victim_snapshot,
    chosen: *mut i64,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let context = unsafe { context_of(&*s.context) };
    let candidates: Vec<Candidate> = unsafe { array(s.candidates, s.num_candidates) }
        .iter()
        .map(|v| Candidate {
            layer: v.layer,
            expert: v.expert,
            last_used: v.last_used,
            inserted: v.inserted,
            uses: v.uses,
            tokens: v.tokens,
            unused_prefetch: v.unused_prefetch != 0,
        })
        .collect();
    let decide =
        |host: &mut dyn Policies| match host.victim(&context, &candidates, s.for_prefetch != 0) {
            Victim::Index(i) => Some(i as i64),
            Victim::Refuse => Some(-1),
            Victim::Default => None,
        };
    match unsafe { ask(user_data, decide) } {
        Ok(index) => unsafe { *chosen = index },
        Err(code) => return code,
    }
    sys::MOERT_OK
}

unsafe extern "C" fn inserted(user_data: *mut c_void, layer: i32, expert: i32, prefetch: i32) {
    let tell = |host: &mut dyn Policies| {
        host.inserted(layer, expert, prefetch != 0);
        Some(())
    };
    let _ = unsafe { ask(user_data, tell) };
}

unsafe extern "C" fn evicted(user_data: *mut c_void, layer: i32, expert: i32) {
    let tell = |host: &mut dyn Policies| {
        host.evicted(layer, expert);
        Some(())
    };
    let _ = unsafe { ask(user_data, tell) };
}

unsafe fn precision_of<'a>(s: &'a sys::moert_precision_snapshot) -> Precision<'a> {
    unsafe {
        Precision {
            context: context_of(&*s.context),
            selections: array(s.selections, s.total_experts),
            high: array(s.high, s.total_experts),
            high_capacity: array(s.high_capacity, s.num_layers),
        }
    }
}

unsafe extern "C" fn initial_high(
    user_data: *mut c_void,
    high_capacity: *const i32,
    num_layers: i32,
    total_experts: i64,
    high: *mut i64,
    num_high: *mut i64,
    failure: *mut sys::moert_failure,
) -> sys::moert_code {
    let capacity = unsafe { array(high_capacity, num_layers as i64) };
    match unsafe { ask(user_data, |host| Some(host.initial_high(capacity, total_experts))) } {
        Ok(list) if list.len() as i64 <= total_experts => unsafe {
            std::ptr::copy_nonoverlapping(list.as_ptr(), high, list.len());
            *num_high = list.len() as i64;
            sys::MOERT_OK
        },
        Ok(_) => sys::MOERT_INVALID_ARGUMENT,
        Err(code) => {
            let why = b"Policies::initial_high panicked\0";
            unsafe { sys::moert_failure_set(failure, why.as_ptr() as *const _) };
            code
        }
    }
}

unsafe extern "C" fn worth(
    user_data: *mut c_void,
    snapshot: *const sys::moert_precision_snapshot,
    worth: *mut f64,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let view = unsafe { precision_of(s) };
    match unsafe { ask(user_data, |host| host.worth(&view)) } {
        Ok(list) if list.len() as i64 == s.total_experts => {
            unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), worth, list.len()) };
            sys::MOERT_OK
        }
        Ok(_) => sys::MOERT_INVALID_ARGUMENT,
        Err(code) => code,
    }
}

/// A yes or no about `context`.
unsafe fn ask_flag(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    answer: *mut i32,
    question: impl FnOnce(&mut dyn Policies, &Context) -> Option<bool>,
) -> sys::moert_code {
    let own = unsafe { *answer != 0 };
    let context = unsafe { context_of(&*context) };
    // No answer: the strategy decides, which is no failure.
    let decide = |host: &mut dyn Policies| Some(question(host, &context).unwrap_or(own));
    match unsafe { ask(user_data, decide) } {
        Ok(yes) => unsafe { *answer = yes as i32 },
        Err(code) => return code,
    }
    sys::MOERT_OK
}

unsafe extern "C" fn wants_capacity(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    wants: *mut i32,
) -> sys::moert_code {
    unsafe { ask_flag(user_data, context, wants, |host, c| host.wants_capacity(c)) }
}

unsafe extern "C" fn upgrades(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    upgrades: *mut i32,
) -> sys::moert_code {
    unsafe { ask_flag(user_data, context, upgrades, |host, c| host.upgrades(c)) }
}

unsafe extern "C" fn backfills(
    user_data: *mut c_void,
    context: *const sys::moert_policy_context,
    free_slots: i32,
    backfills: *mut i32,
) -> sys::moert_code {
    unsafe { ask_flag(user_data, context, backfills, |host, c| host.backfills(c, free_slots != 0)) }
}

unsafe extern "C" fn precision(
    user_data: *mut c_void,
    snapshot: *const sys::moert_precision_snapshot,
    promote: *mut i64,
    num_promote: *mut i64,
    demote: *mut i64,
    num_demote: *mut i64,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let view = unsafe { precision_of(s) };
    match unsafe { ask(user_data, |host| host.precision(&view)) } {
        Ok((up, down)) => {
            for (list, out, count) in [(up, promote, num_promote), (down, demote, num_demote)] {
                let n = list.len().min(s.total_experts as usize);
                unsafe {
                    std::ptr::copy_nonoverlapping(list.as_ptr(), out, n);
                    *count = n as i64;
                }
            }
            sys::MOERT_OK
        }
        Err(code) => code,
    }
}

unsafe extern "C" fn transfer_version(
    user_data: *mut c_void,
    snapshot: *const sys::moert_transfer_snapshot,
    version: *mut i32,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let view = Transfer {
        context: unsafe { context_of(&*s.context) },
        expert: s.expert,
        tokens: s.tokens,
        layer_tokens: s.layer_tokens,
        prefetch: s.prefetch != 0,
        num_versions: s.num_versions,
    };
    match unsafe { ask(user_data, |host| host.transfer_version(&view)) } {
        Ok(chosen) => unsafe { *version = chosen },
        Err(code) => return code,
    }
    sys::MOERT_OK
}

unsafe extern "C" fn placement(
    user_data: *mut c_void,
    snapshot: *const sys::moert_placement_snapshot,
    decisions: *mut sys::moert_placement,
) -> sys::moert_code {
    let s = unsafe { &*snapshot };
    let context = unsafe { context_of(&*s.context) };
    let misses: Vec<Miss> = unsafe { array(s.misses, s.num_misses) }
        .iter()
        .map(|m| Miss {
            expert: m.expert,
            tokens: m.tokens,
            mass: m.mass,
            bytes: m.bytes,
            load_ns: m.load_ns,
            cpu_ns: m.cpu_ns,
            arriving: m.arriving != 0,
        })
        .collect();
    match unsafe { ask(user_data, |host| host.placement(&context, &misses, s.link_busy_ns)) } {
        Ok(places) if places.len() == misses.len() => {
            for (i, place) in places.iter().enumerate() {
                let code = match place {
                    Placement::Load => sys::MOERT_LOAD_MISS,
                    Placement::Cpu => sys::MOERT_COMPUTE_ON_CPU,
                };
                unsafe { *decisions.add(i) = code };
            }
            sys::MOERT_OK
        }
        Ok(_) => sys::MOERT_INVALID_ARGUMENT,
        Err(code) => code,
    }
}
