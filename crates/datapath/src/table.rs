//! Maps with typed keys and values.

use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

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

    /// Whether a hash map has no entry. The cost is that of finding the first, not of reading all.
    pub(crate) fn is_empty(&self) -> Result<bool, Error> {
        let mut key = K::zeroed();
        // SAFETY: without a key the kernel gives the first; there is room for a key of the map's size.
        let code = unsafe { libbpf_sys::bpf_map_get_next_key(self.fd.as_raw_fd(), ptr::null(), (&raw mut key).cast()) };
        match -code {
            0 => Ok(false),
            libc::ENOENT => Ok(true),
            _ => Err(Error::code("bpf(BPF_MAP_GET_NEXT_KEY)", self.name, code)),
        }
    }

    /// All entries of a hash map. What changes meanwhile may be there or not.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        let mut entries = Vec::new();
        let mut keys = vec![K::zeroed(); BATCH];
        let mut values = vec![V::zeroed(); BATCH];
        // The kernel's place in the table: 4 bytes for hash maps (kernel/bpf/hashtab.c,
        // __htab_map_lookup_and_delete_batch).
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
    /// The first values of an array.
    pub(crate) fn first(&self, count: usize) -> Result<Vec<V>, Error> {
        let (mut keys, mut values) = (vec![0u32; count], vec![V::zeroed(); count]);
        let mut position = 0u32;
        #[expect(clippy::cast_possible_truncation, reason = "an array has no more")]
        let mut found = count as u32;
        // SAFETY: room for `count` keys and values of the map's sizes, and for a position, which is a key of an
        // array's.
        let code = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                self.fd.as_raw_fd(),
                ptr::null_mut(),
                (&raw mut position).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &raw mut found,
                ptr::null(),
            )
        };
        match -code {
            // Those were the last.
            0 | libc::ENOENT => {
                values.truncate(found as usize);
                Ok(values)
            }
            _ => Err(Error::code("bpf(BPF_MAP_LOOKUP_BATCH)", self.name, code)),
        }
    }

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

/// A hash map that makes room as it fills: the one slot of an array of maps, which the programs look into, holds the
/// table, and gets a larger one when that is full. What the programs write to an entry meanwhile may be lost.
#[derive(Debug)]
pub(crate) struct GrowingTable<K, V> {
    name: &'static str,
    slot: OwnedFd,
    /// The table in the slot, and how many entries it may have.
    table: RwLock<(Table<K, V>, u32)>,
}

/// 64 kB of buckets.
const FIRST_CAPACITY: u32 = 4096;
const GROWTH: u32 = 4;
const LAST_CAPACITY: u32 = FIRST_CAPACITY * GROWTH.pow(4);

impl<K: Plain, V: Plain> GrowingTable<K, V> {
    /// `slot` is an array of one map. An empty one gets a table.
    pub(crate) fn new(name: &'static str, slot: OwnedFd) -> Result<Self, Error> {
        let key = 0u32;
        let mut id = 0u32;
        // SAFETY: an array of maps has keys of 4 bytes, and shows ids of 4 bytes.
        let code =
            unsafe { libbpf_sys::bpf_map_lookup_elem(slot.as_raw_fd(), (&raw const key).cast(), (&raw mut id).cast()) };
        let table = match -code {
            0 => Self::adopt(name, id)?,
            libc::ENOENT => {
                let table = Self::create(name, FIRST_CAPACITY)?;
                Self::fill(name, &slot, &table)?;
                (table, FIRST_CAPACITY)
            }
            _ => return Err(Error::code("bpf(BPF_MAP_LOOKUP_ELEM)", name, code)),
        };
        Ok(Self { name, slot, table: RwLock::new(table) })
    }

    fn adopt(name: &'static str, id: u32) -> Result<(Table<K, V>, u32), Error> {
        // SAFETY: takes a number.
        let fd = unsafe { libbpf_sys::bpf_map_get_fd_by_id(id) };
        if fd < 0 {
            return Err(Error::code("bpf(BPF_MAP_GET_FD_BY_ID)", name, fd));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let mut info = libbpf_sys::bpf_map_info::default();
        let mut size = size_of_val(&info) as u32;
        // SAFETY: room for the information and its size.
        let code = unsafe { libbpf_sys::bpf_map_get_info_by_fd(fd.as_raw_fd(), &raw mut info, &raw mut size) };
        if code != 0 {
            return Err(Error::code("bpf(BPF_OBJ_GET_INFO_BY_FD)", name, code));
        }
        Ok((Table::new(name, fd, info.key_size, info.value_size)?, info.max_entries))
    }

    fn create(name: &'static str, capacity: u32) -> Result<Table<K, V>, Error> {
        let object = CString::new(name).map_err(|_| Error::Mismatch { what: name.to_owned() })?;
        let mut options = libbpf_sys::bpf_map_create_opts::default();
        options.sz = size_of_val(&options) as libbpf_sys::size_t;
        options.map_flags = libbpf_sys::BPF_F_NO_PREALLOC;
        let (key, value) = (size_of::<K>() as u32, size_of::<V>() as u32);
        // SAFETY: a terminated string and sized options that live through the call.
        let fd = unsafe {
            libbpf_sys::bpf_map_create(
                libbpf_sys::BPF_MAP_TYPE_HASH,
                object.as_ptr(),
                key,
                value,
                capacity,
                &raw const options,
            )
        };
        if fd < 0 {
            return Err(Error::code("bpf(BPF_MAP_CREATE)", name, fd));
        }
        // SAFETY: a new descriptor that nobody else owns.
        Table::new(name, unsafe { OwnedFd::from_raw_fd(fd) }, key, value)
    }

    /// From here on the programs find `table`.
    fn fill(name: &'static str, slot: &OwnedFd, table: &Table<K, V>) -> Result<(), Error> {
        let key = 0u32;
        let fd = table.fd.as_raw_fd();
        // SAFETY: an array of maps has keys of 4 bytes, and takes descriptors.
        let code = unsafe {
            libbpf_sys::bpf_map_update_elem(
                slot.as_raw_fd(),
                (&raw const key).cast(),
                (&raw const fd).cast(),
                libbpf_sys::BPF_ANY.into(),
            )
        };
        if code == 0 { Ok(()) } else { Err(Error::code("bpf(BPF_MAP_UPDATE_ELEM)", name, code)) }
    }

    fn read(&self) -> RwLockReadGuard<'_, (Table<K, V>, u32)> {
        // It changes in one assignment, so a panic elsewhere has not left it wrong.
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Many at once. On error some may have been inserted.
    pub(crate) fn insert_all(&self, keys: &[K], values: &[V]) -> Result<(), Error> {
        loop {
            let (result, capacity) = {
                let table = self.read();
                (table.0.insert_all(keys, values), table.1)
            };
            match result {
                Err(Error::Call { source, .. })
                    if source.raw_os_error() == Some(libc::E2BIG) && capacity < LAST_CAPACITY =>
                {
                    self.grow(capacity)?;
                }
                result => return result,
            }
        }
    }

    fn grow(&self, full: u32) -> Result<(), Error> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        if table.1 != full {
            return Ok(());
        }
        let capacity = full.saturating_mul(GROWTH).min(LAST_CAPACITY);
        let larger = Self::create(self.name, capacity)?;
        let (keys, values): (Vec<K>, Vec<V>) = table.0.entries()?.into_iter().unzip();
        larger.insert_all(&keys, &values)?;
        Self::fill(self.name, &self.slot, &larger)?;
        *table = (larger, capacity);
        Ok(())
    }

    pub(crate) fn get(&self, key: &K) -> Result<Option<V>, Error> {
        self.read().0.get(key)
    }

    /// Whether it was there.
    pub(crate) fn remove(&self, key: &K) -> Result<bool, Error> {
        self.read().0.remove(key)
    }

    /// All entries. What changes meanwhile may be there or not.
    pub(crate) fn entries(&self) -> Result<Vec<(K, V)>, Error> {
        self.read().0.entries()
    }
}
