//! A list that grows without moving.
//!
//! A `Vec` that is full moves all of it to twice the room: a million counters would stand still meanwhile, and half of the
//! room would be empty afterwards. Pages of a fixed size cost one more jump and waste no more than one page.

use std::ops::{Index, IndexMut};

/// Bytes of one page: enough that the list of pages stays short, and few in a store that holds little.
const PAGE_BYTES: usize = 16 * 1024;

/// Items by number, from 0.
#[derive(Debug)]
pub(super) struct Pages<T> {
    pages: Vec<Vec<T>>,
    len: usize,
}

impl<T: Copy> Pages<T> {
    /// Items a page holds: a power of two.
    const EACH: usize = 1 << (PAGE_BYTES / size_of::<T>()).ilog2();

    pub(super) fn new() -> Self {
        Self { pages: Vec::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, item: T) {
        let page = self.len / Self::EACH;
        if page == self.pages.len() {
            self.pages.push(Vec::with_capacity(Self::EACH));
        }
        self.pages[page].push(item);
        self.len += 1;
    }

    /// The last item. Its page stays, for the next one.
    pub(super) fn pop(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        self.pages[self.len / Self::EACH].pop()
    }
}

impl<T: Copy> Index<usize> for Pages<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        &self.pages[index / Self::EACH][index % Self::EACH]
    }
}

impl<T: Copy> IndexMut<usize> for Pages<T> {
    fn index_mut(&mut self, index: usize) -> &mut T {
        &mut self.pages[index / Self::EACH][index % Self::EACH]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_number_and_a_page_is_used_again() {
        let mut pages = Pages::new();
        let many = 3 * Pages::<u32>::EACH as u32 + 1;
        for turn in 0..2 {
            (0..many).for_each(|number| pages.push(number + turn));
            assert!((0..many).all(|number| pages[number as usize] == number + turn));
            assert_eq!((pages.len(), pages.pages.len()), (many as usize, 4));
            (0..many).rev().for_each(|number| assert_eq!(pages.pop(), Some(number + turn)));
            assert_eq!((pages.len(), pages.pop()), (0, None));
        }
    }
}
