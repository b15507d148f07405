//! A map with typed keys and values.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use crate::Error;
use crate::abi::Plain;

/// Entries a system call; a call's cost is gone in the entries' well before.
const BATCH: usize = 4096;

/// A hash or array map whose key is `K` and value `V`.
#[derive(Debug)]
pub(crate) struct Table<K, V> {
    name: &'static str,
    fd: OwnedFd,
    types: PhantomData<fn(K) -> V>,
}

impl<K: Plain, V: Plain> Table<K, V> {
    /// `key_size` and `value_size` are the map's; it is refused if they are not the types'.
    pub(crate) fn new(name: &'static str, fd: OwnedFd, key_size: u32, value_size: u32) -> Result<Self, Error> {
        if (key_size as usize, value_size as usize) != (size_of::<K>(), size_of::<V>()) {
            return Err(Error::Mismatch { what: format!("map {name}") });
        }
        Ok(Self { name, fd, types: PhantomData })
    }

    pub(crate) fn insert(&self, key: &K, value: &V) -> Result<(), Error> {
        // SAFETY: key and value are of the map's sizes (`new`) and live through the call.
        let code = unsafe {
            libbpf_sys::bpf_map_update_elem(
                self.fd.as_raw_fd(),
                (&raw const *key).cast(),
                (&raw const *value).cast(),
                libbpf_sys::BPF_ANY.into(),
            )
        };
        if code == 0 { Ok(()) } else { Err(Error::code("bpf(BPF_MAP_UPDATE_ELEM)", self.name, code)) }
    }

    /// Many at once. On error some may have been inserted.
    pub(crate) fn insert_all(&self, keys: &[K], values: &[V]) -> Result<(), Error> {
        for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
            #[expect(clippy::cast_possible_truncation, reason = "BATCH at most")]
            let mut count = keys.len().min(values.len()) as u32;
            // SAFETY: `count` keys and values of the map's sizes; null options mean defaults.
            let code = unsafe {
                libbpf_sys::bpf_map_update_batch(
                    self.fd.as_raw_fd(),
                    keys.as_ptr().cast(),
                    values.as_ptr().cast(),
                    &raw mut count,
                    ptr::null(),
                )
            };
            if code != 0 {
                return Err(Error::code("bpf(BPF_MAP_UPDATE_BATCH)", self.name, code));
            }
        }
        Ok(())
    }

    pub(crate) fn get(&self, key: &K) -> Result<Option<V>, Error> {
        let mut value = V::zeroed();
        // SAFETY: key and value are of the map's sizes (`new`) and live through the call.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_elem(self.fd.as_raw_fd(), (&raw const *key).cast(), (&raw mut value).cast())
        };
        match -code {
            0 => Ok(Some(value)),
            libc::ENOENT => Ok(None),
            _ => Err(Error::code("bpf(BPF_MAP_LOOKUP_ELEM)", self.name, code)),
        }
    }

    /// Whether it was there.
    pub(crate) fn remove(&self, key: &K) -> Result<bool, Error> {
        // SAFETY: the key is of the map's size (`new`) and lives through the call.
        let code = unsafe { libbpf_sys::bpf_map_delete_elem(self.fd.as_raw_fd(), (&raw const *key).cast()) };
        match -code {
            0 => Ok(true),
            libc::ENOENT => Ok(false),
            _ => Err(Error::code("bpf(BPF_MAP_DELETE_ELEM)", self.name, code)),
        }
    }

    /// All entries of a hash map. What changes meanwhile may be there or not.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        let mut entries = Vec::new();
        let mut keys = vec![K::zeroed(); BATCH];
        let mut values = vec![V::zeroed(); BATCH];
        // The kernel's place in the table: 4 bytes for hash maps (kernel/bpf/hashtab.c, __htab_map_lookup_and_delete_batch).
        let mut position = 0u32;
        let mut started = false;
        loop {
            #[expect(clippy::cast_possible_truncation, reason = "BATCH, or as many as were asked for")]
            let mut count = keys.len() as u32;
            // SAFETY: room for `count` keys and values of the map's sizes, and for a position.
            let code = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    self.fd.as_raw_fd(),
                    if started { (&raw mut position).cast() } else { ptr::null_mut() },
                    (&raw mut position).cast(),
                    keys.as_mut_ptr().cast(),
                    values.as_mut_ptr().cast(),
                    &raw mut count,
                    ptr::null(),
                )
            };
            match -code {
                0 | libc::ENOENT => {
                    entries.extend(keys.iter().copied().zip(values.iter().copied()).take(count as usize));
                    if code != 0 {
                        return Ok(entries);
                    }
                    started = true;
                }
                // One chain of the table does not fit.
                libc::ENOSPC => {
                    keys.resize(keys.len() * 2, K::zeroed());
                    values.resize(values.len() * 2, V::zeroed());
                }
                _ => return Err(Error::code("bpf(BPF_MAP_LOOKUP_BATCH)", self.name, code)),
            }
        }
    }
}

impl<V: Plain> Table<u32, V> {
    /// The values of all possible CPUs under one key of a per-CPU array.
    pub(crate) fn per_cpu(&self, key: u32) -> Result<Vec<V>, Error> {
        // SAFETY: takes nothing.
        let cpus = unsafe { libbpf_sys::libbpf_num_possible_cpus() };
        let cpus = usize::try_from(cpus)
            .map_err(|_| Error::call("libbpf_num_possible_cpus", self.name, io::Error::from_raw_os_error(-cpus)))?;
        // The kernel gives each CPU's value 8 bytes or a multiple of it.
        let stride = size_of::<V>().next_multiple_of(8);
        let mut bytes = vec![0u8; stride * cpus];
        // SAFETY: room for one value of each possible CPU.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_elem(self.fd.as_raw_fd(), (&raw const key).cast(), bytes.as_mut_ptr().cast())
        };
        if code != 0 {
            return Err(Error::code("bpf(BPF_MAP_LOOKUP_ELEM)", self.name, code));
        }
        Ok(bytes.chunks(stride).filter_map(V::from_bytes).collect())
    }
}

impl<K, V> AsFd for Table<K, V> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
