//! An allocator that counts what is allocated, and how often.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicIsize, AtomicUsize, Ordering::Relaxed},
};

/// Counts, and leaves the rest to the system.
struct Counting;

/// Bytes that are allocated now.
pub(crate) static LIVE: AtomicIsize = AtomicIsize::new(0);

/// How often something was allocated, or grew.
pub(crate) static CALLS: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[expect(
    unsafe_code,
    reason = "the trait is unsafe; every call goes on to the system's allocator as it came"
)]
// SAFETY: System keeps the contract; counting touches no memory that it hands out.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Relaxed);
        LIVE.fetch_add(layout.size().cast_signed(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size().cast_signed(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Each bench compiles this file and uses a part of it; this names the rest.
const _: fn() = || {
    let _ = (&LIVE, &CALLS);
};
