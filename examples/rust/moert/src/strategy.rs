//! Strategies: the named bundles of policies that `Options::strategy` may ask for, and the host's own.
use crate::error::{check, text, Result};
use crate::policy::{self, Policies};
use crate::source::c_string;
use moert_sys as sys;
use std::ffi::{c_void, CString};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// A strategy of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrategyInfo {
    pub name: String,
    pub summary: String,
    /// Keys of its spec and what they mean.
    pub keys: Vec<(String, String)>,
}

/// Every strategy of this process, the host's included.
pub fn strategies() -> Result<Vec<StrategyInfo>> {
    let mut all = Vec::new();
    for index in 0..unsafe { sys::moert_strategy_count() } {
        let mut c: sys::moert_strategy_info = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&c) as u64;
        unsafe { sys::moert_strategy_info_init(&mut c, size) };
        check(|e| unsafe { sys::moert_strategy_at(index, &mut c, e) })?;
        let keys = text(c.keys)
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(key, meaning)| (key.trim().to_string(), meaning.trim().to_string()))
            .collect();
        all.push(StrategyInfo { name: text(c.name), summary: text(c.summary), keys });
    }
    Ok(all)
}

/// The values of a spec's keys.
pub struct Params(*mut sys::moert_strategy_params);

impl Params {
    /// The text behind `key=`; None if the spec has no such key.
    pub fn get(&self, key: &str) -> Option<String> {
        let key = CString::new(key).ok()?;
        // The text is valid while the factory runs; it is copied here.
        let value = unsafe { sys::moert_strategy_params_get(self.0, key.as_ptr()) };
        if value.is_null() {
            None
        } else {
            Some(text(value))
        }
    }
}

/// The result of a factory: the policies, and the spec that decides where they do not.
pub struct Strategy {
    pub base: String,
    pub policies: Box<dyn Policies>,
}

/// Called whenever a spec names the strategy, possibly by several threads at once. An error refuses the
/// spec with its message.
pub type Factory = Box<dyn Fn(&Params) -> std::result::Result<Strategy, String> + Send + Sync>;

struct Registered {
    factory: Factory,
}

/// Adds a strategy for the rest of the process: its name then works wherever a spec does.
/// Names and keys are of a-z, 0-9, '-' and '_'. Fails with `Code::AlreadyExists` for a name that is
/// taken.
pub fn register_strategy(info: &StrategyInfo, factory: Factory) -> Result<()> {
    let (name, summary) = (c_string("name", &info.name)?, c_string("summary", &info.summary)?);
    let keys: Vec<String> = info.keys.iter().map(|(k, v)| format!("{k}: {v}")).collect();
    let keys = c_string("keys", &keys.join("\n"))?;
    let mut c: sys::moert_strategy_info = unsafe { std::mem::zeroed() };
    let size = std::mem::size_of_val(&c) as u64;
    unsafe { sys::moert_strategy_info_init(&mut c, size) };
    c.name = name.as_ptr();
    c.summary = summary.as_ptr();
    if !info.keys.is_empty() {
        c.keys = keys.as_ptr();
    }
    // The library keeps it for the rest of the process.
    let user_data = Box::into_raw(Box::new(Registered { factory }));
    let registered = check(|e| unsafe {
        sys::moert_strategy_register(&c, Some(make), user_data as *mut c_void, e)
    });
    if registered.is_err() {
        drop(unsafe { Box::from_raw(user_data) });
    }
    registered
}

thread_local! {
    // moert_strategy.base is read as the factory returns: the text has to outlive the call.
    static BASE: std::cell::RefCell<CString> = std::cell::RefCell::new(CString::default());
}

unsafe extern "C" fn make(
    user_data: *mut c_void,
    params: *mut sys::moert_strategy_params,
    strategy: *mut sys::moert_strategy,
    failure: *mut sys::moert_failure,
) -> sys::moert_code {
    let registered = unsafe { &*(user_data as *const Registered) };
    let made = catch_unwind(AssertUnwindSafe(|| {
        let made = (registered.factory)(&Params(params))?;
        let base = CString::new(made.base).map_err(|_| "base has a NUL".to_string())?;
        let mut vtable = policy::vtable(made.policies);
        let pointer = BASE.with(|kept| {
            *kept.borrow_mut() = base;
            kept.borrow().as_ptr()
        });
        unsafe {
            vtable.struct_size = (*(*strategy).policies).struct_size;
            *(*strategy).policies = vtable;
            (*strategy).base = pointer;
        }
        Ok(())
    }));
    let why = match made {
        Ok(Ok(())) => return sys::MOERT_OK,
        Ok(Err(why)) => why,
        Err(_) => "the strategy's factory panicked".to_string(),
    };
    let why = CString::new(why.replace('\0', "?")).unwrap_or_default();
    unsafe { sys::moert_failure_set(failure, why.as_ptr()) };
    sys::MOERT_INVALID_ARGUMENT
}
