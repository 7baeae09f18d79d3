//! Panics as findings: caught per seed, with the place they came from.
//!
//! ```text
//!   assertion fails ──► hook (message, place; silent inside a world) ──► unwinding ──► Err(text)
//! ```

use std::{
    cell::{Cell, RefCell},
    panic::{self, AssertUnwindSafe},
    sync::Once,
};

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs `world` and gives the text of the panic that ended it, if one did. Panics elsewhere keep
/// the hook that was there before.
pub(crate) fn catch(world: impl FnOnce()) -> Result<(), String> {
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if INSIDE.get() {
                LAST.set(info.to_string());
            } else {
                before(info);
            }
        }));
    });
    INSIDE.set(true);
    let result = panic::catch_unwind(AssertUnwindSafe(world));
    INSIDE.set(false);
    result.map_err(|_| LAST.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panic_becomes_its_text_and_place() {
        let what = catch(|| assert_eq!(1, 2, "the sum is wrong")).unwrap_err();
        assert!(
            what.contains("the sum is wrong") && what.contains("panics.rs"),
            "{what}"
        );
        assert_eq!(catch(|| ()), Ok(()));
    }
}
