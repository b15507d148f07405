//! What is written down below only where it may have changed.

use std::ops::{Deref, DerefMut};

/// Something of which is known whether it may have changed since that was last asked.
#[derive(Debug, Default)]
pub(crate) struct Watched<T> {
    value: T,
    touched: bool,
}

impl<T> Watched<T> {
    /// Whether it may have changed since that was last asked.
    pub(crate) fn take_touched(&mut self) -> bool {
        std::mem::take(&mut self.touched)
    }
}

impl<T> From<T> for Watched<T> {
    fn from(value: T) -> Self {
        Self { value, touched: false }
    }
}

impl<T> Deref for Watched<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Watched<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.touched = true;
        &mut self.value
    }
}
