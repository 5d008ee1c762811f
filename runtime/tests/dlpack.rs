//! Tensors lent and taken over through DLPack.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tensorc_abi::DType;
use tensorc_runtime::Device;
use tensorc_runtime::dlpack::{
    DEVICE_CPU, DEVICE_CUDA_HOST, DEVICE_ROCM_HOST, DLDataType, DLDevice, DLManagedTensor, DLManagedTensorVersioned,
    DLPackVersion, DLTensor, DlpackError, FLAG_READ_ONLY, Imported, VERSION, export, export_legacy,
};

/// An owner of elements that counts how often it is dropped.
struct Owner {
    data: Box<[f32]>,
    drops: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

fn owner(values: &[f32]) -> (Arc<Owner>, *mut u8, Arc<AtomicUsize>) {
    let drops = Arc::new(AtomicUsize::new(0));
    let mut owner = Arc::new(Owner { data: values.into(), drops: drops.clone() });
    let data = Arc::get_mut(&mut owner).unwrap().data.as_mut_ptr().cast();
    (owner, data, drops)
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_ne_bytes(*b)).collect()
}

/// What another library hands over. Elements are those of `data`, which lives on.
struct Foreign {
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    deleted: AtomicUsize,
}

impl Foreign {
    fn new(shape: &[i64], strides: Option<&[i64]>) -> Foreign {
        Foreign { shape: shape.to_vec(), strides: strides.map(<[i64]>::to_vec), deleted: AtomicUsize::new(0) }
    }

    fn tensor(&mut self, data: *const u8, dtype: DLDataType, byte_offset: u64) -> DLTensor {
        DLTensor {
            data: data.cast_mut().cast(),
            device: DLDevice { device_type: DEVICE_CPU, device_id: 0 },
            ndim: self.shape.len() as i32,
            dtype,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut().map_or(std::ptr::null_mut(), |s| s.as_mut_ptr()),
            byte_offset,
        }
    }

    /// Takes over what `edit` makes of the tensor, and counts calls of the deleter.
    fn import(
        &mut self,
        data: *const u8,
        dtype: DLDataType,
        byte_offset: u64,
        edit: impl FnOnce(&mut DLManagedTensorVersioned),
    ) -> Result<Imported, DlpackError> {
        let dl_tensor = self.tensor(data, dtype, byte_offset);
        let manager_ctx = (&raw const self.deleted).cast_mut().cast::<c_void>();
        let mut managed =
            DLManagedTensorVersioned { version: VERSION, manager_ctx, deleter: Some(delete), flags: 0, dl_tensor };
        edit(&mut managed);
        // SAFETY: the structure is complete, its deleter frees it, and the data outlives the tests.
        unsafe { Imported::from_versioned(Box::into_raw(Box::new(managed))) }
    }

    fn deleted(&self) -> usize {
        self.deleted.load(Ordering::Relaxed)
    }
}

unsafe extern "C" fn delete(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: `Foreign::import` made the tensor from a box; its context is the counter.
    unsafe {
        let tensor = Box::from_raw(tensor);
        (*tensor.manager_ctx.cast::<AtomicUsize>()).fetch_add(1, Ordering::Relaxed);
    }
}

const F32: DLDataType = DLDataType::of(DType::F32);

#[test]
fn the_structures_are_those_of_the_header() {
    use std::mem::offset_of;
    assert_eq!((size_of::<DLTensor>(), size_of::<DLManagedTensor>()), (48, 64));
    assert_eq!((offset_of!(DLTensor, shape), offset_of!(DLTensor, byte_offset)), (24, 40));
    assert_eq!((offset_of!(DLManagedTensor, manager_ctx), offset_of!(DLManagedTensor, deleter)), (48, 56));
    assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
    assert_eq!(offset_of!(DLManagedTensorVersioned, deleter), 16);
    assert_eq!(offset_of!(DLManagedTensorVersioned, flags), 24);
    assert_eq!(offset_of!(DLManagedTensorVersioned, dl_tensor), 32);
}

#[test]
fn element_types_have_one_form() {
    let expected = [(2, 32), (2, 64), (2, 16), (4, 16), (0, 8), (0, 16), (0, 32), (0, 64), (1, 8), (1, 16), (1, 32)];
    for (dtype, (code, bits)) in DType::ALL.into_iter().zip(expected.into_iter().chain([(1, 64), (6, 8)])) {
        assert_eq!(DLDataType::of(dtype), DLDataType { code, bits, lanes: 1 }, "{dtype}");
        assert_eq!(DLDataType::of(dtype).dtype(), Some(dtype));
    }
}

#[test]
fn what_is_lent_comes_back_without_a_copy() {
    for read_only in [false, true] {
        let (owner, data, drops) = owner(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        // SAFETY: the elements belong to the owner.
        let lent = unsafe { export(owner.clone(), data, DType::F32, &[2, 3], Device::cpu(1), read_only) }.unwrap();
        // SAFETY: the tensor is alive and given to nobody else.
        let mut back = unsafe {
            let tensor = &*lent;
            assert_eq!(tensor.version, VERSION);
            assert_eq!(tensor.dl_tensor.device, DLDevice { device_type: DEVICE_CPU, device_id: 0 });
            assert_eq!(std::slice::from_raw_parts(tensor.dl_tensor.strides, 2), [3, 1]);
            assert_eq!(tensor.flags, if read_only { FLAG_READ_ONLY } else { 0 });
            Imported::from_versioned(lent).unwrap()
        };
        assert_eq!((back.dtype(), back.dims()), (DType::F32, [2, 3].as_slice()));
        assert_eq!((back.is_copy(), back.is_read_only()), (false, read_only));
        assert_eq!(back.as_tensor().data.as_ptr(), data.cast_const());
        assert_eq!(f32s(back.as_slice()), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        match back.as_mut_slice() {
            Some(bytes) => bytes[20..].copy_from_slice(&7f32.to_ne_bytes()),
            None => assert!(read_only),
        }
        assert_eq!(f32s(back.as_slice())[5], if read_only { 6.0 } else { 7.0 });
        drop(owner);
        assert_eq!(drops.load(Ordering::Relaxed), 0);
        drop(back);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn the_older_form_does_the_same() {
    let (owner, data, drops) = owner(&[1.0, 2.0]);
    // SAFETY: the elements belong to the owner.
    let refused = unsafe { export_legacy(owner.clone(), data, DType::F32, &[2], Device::cpu(0), true) };
    assert_eq!(refused.err(), Some(DlpackError::ReadOnly));
    // SAFETY: as above.
    let lent = unsafe { export_legacy(owner, data, DType::F32, &[2, 1], Device::pinned(0), false) }.unwrap();
    // SAFETY: the tensor is alive and given to nobody else.
    let back = unsafe { Imported::from_legacy(lent) }.unwrap();
    assert_eq!((back.dims(), f32s(back.as_slice())), ([2, 1].as_slice(), vec![1.0, 2.0]));
    assert!(!back.is_copy() && !back.is_read_only());
    // On another thread, and kept by something that only knows bytes.
    std::thread::spawn(move || drop(bytes::Bytes::from_owner(back).slice(4..))).join().unwrap();
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn scalars_and_empty_tensors_are_lent() {
    for (dims, len) in [(vec![], 4), (vec![3, 0, 2], 0), (vec![0, 1 << 40], 0)] {
        let (owner, data, drops) = owner(&[1.0]);
        let data = if len == 0 { std::ptr::null_mut() } else { data };
        // SAFETY: the only element belongs to the owner.
        let back = unsafe {
            let lent = export(owner, data, DType::F32, &dims, Device::cpu(0), false).unwrap();
            Imported::from_versioned(lent).unwrap()
        };
        assert_eq!((back.dims(), back.as_slice().len()), (dims.as_slice(), len));
        drop(back);
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn what_cannot_be_lent_is_refused_and_released() {
    let (owner, data, drops) = owner(&[1.0]);
    // SAFETY: nothing is lent.
    unsafe {
        let device = Device::accelerator(2);
        let refused = export(owner.clone(), data, DType::F32, &[1], device, false);
        assert_eq!(refused.err(), Some(DlpackError::Device(device)));
        for dims in [&[u64::MAX][..], &[0, 1 << 40, 1 << 40]] {
            let refused = export(owner.clone(), data, DType::F32, dims, Device::cpu(0), false);
            assert_eq!(refused.err(), Some(DlpackError::TooLarge));
        }
    }
    drop(owner);
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

/// Elements in the order of all positions, found by the formula.
fn by_formula(data: &[f32], first: i64, shape: &[i64], strides: &[i64]) -> Vec<f32> {
    let count: i64 = shape.iter().product();
    let at = |flat: i64| {
        let mut rest = flat;
        (0..shape.len()).rev().fold(first, |at, axis| {
            let position = rest % shape[axis];
            rest /= shape[axis];
            at + position * strides[axis]
        })
    };
    (0..count).map(|flat| data[at(flat) as usize]).collect()
}

#[test]
fn strided_elements_are_gathered_and_the_tensor_released() {
    let data: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let cases: [(&[i64], &[i64], i64); 8] = [
        (&[4, 6], &[1, 4], 0),
        (&[2, 3, 2], &[12, 4, 2], 1),
        (&[2, 3, 4], &[0, 4, 1], 8),
        (&[3, 2], &[-8, -1], 23),
        (&[3, 4], &[8, 1], 2),
        (&[5], &[0], 7),
        (&[1, 2], &[i64::MAX, 3], 0),
        (&[2, 1, 2, 2], &[8, 0, 1, 4], 0),
    ];
    for (shape, strides, first) in cases {
        let mut foreign = Foreign::new(shape, Some(strides));
        let imported = foreign.import(data.as_ptr().cast(), F32, first as u64 * 4, |_| {}).unwrap();
        assert!(imported.is_copy());
        assert_eq!(foreign.deleted(), 1, "{shape:?} {strides:?}");
        assert_eq!(f32s(imported.as_slice()), by_formula(&data, first, shape, strides), "{shape:?} {strides:?}");
        drop(imported);
        assert_eq!(foreign.deleted(), 1);
    }
}

#[test]
fn every_element_size_is_gathered() {
    let data: Vec<u64> = (0..8).map(|i| 0x0101_0101_0101_0101 * i).collect();
    for dtype in DType::ALL {
        let mut foreign = Foreign::new(&[2, 2], Some(&[1, 2]));
        let imported = foreign.import(data.as_ptr().cast(), DLDataType::of(dtype), 0, |_| {}).unwrap();
        // SAFETY: all bytes of the vector are initialised.
        let bytes = unsafe { std::slice::from_raw_parts(data.as_ptr().cast::<u8>(), 64) };
        let size = dtype.size();
        let expected: Vec<u8> = [0, 2, 1, 3].iter().flat_map(|i| bytes[i * size..][..size].to_vec()).collect();
        assert_eq!(imported.as_slice(), expected, "{dtype}");
    }
}

#[test]
fn elements_without_gaps_stay_where_they_are() {
    let data: Vec<f32> = (0..8).map(|i| i as f32).collect();
    let cases: [(&[i64], Option<&[i64]>); 4] =
        [(&[2, 3], None), (&[2, 3], Some(&[3, 1])), (&[2, 1, 3], Some(&[3, 99, 1])), (&[1, 6], Some(&[-5, 1]))];
    for (shape, strides) in cases {
        let mut foreign = Foreign::new(shape, strides);
        let imported = foreign.import(data.as_ptr().cast(), F32, 4, |_| {}).unwrap();
        assert!(!imported.is_copy());
        assert_eq!(imported.as_slice().as_ptr(), data[1..].as_ptr().cast());
        assert_eq!(f32s(imported.as_slice()), &data[1..7]);
        assert_eq!(foreign.deleted(), 0);
        drop(imported);
        assert_eq!(foreign.deleted(), 1);
    }
}

#[test]
fn what_the_run_time_cannot_use_in_place_is_copied() {
    let bytes: Vec<u8> = (0..32).collect();
    let odd = bytes.as_ptr().addr() % 2 + 1;
    let mut foreign = Foreign::new(&[3], None);
    let imported = foreign.import(bytes.as_ptr(), F32, odd as u64, |_| {}).unwrap();
    assert!(imported.is_copy(), "the elements are not aligned");
    assert_eq!(imported.as_slice(), &bytes[odd..odd + 12]);

    let mut foreign = Foreign::new(&[4], None);
    let truths = [0u8, 1, 2, 255];
    let imported = foreign.import(truths.as_ptr(), DLDataType::of(DType::Bool), 0, |_| {}).unwrap();
    assert_eq!((imported.is_copy(), imported.as_slice()), (true, [0, 1, 1, 1].as_slice()));
    let imported = foreign.import(truths.as_ptr(), DLDataType::of(DType::U8), 0, |_| {}).unwrap();
    assert!(!imported.is_copy());
}

#[test]
fn pinned_host_memory_is_host_memory() {
    let data = [1f32, 2.0];
    for device_type in [DEVICE_CUDA_HOST, DEVICE_ROCM_HOST] {
        let mut foreign = Foreign::new(&[2], None);
        let edit = |m: &mut DLManagedTensorVersioned| m.dl_tensor.device = DLDevice { device_type, device_id: 3 };
        let imported = foreign.import(data.as_ptr().cast(), F32, 0, edit).unwrap();
        assert_eq!(f32s(imported.as_slice()), data);
    }
}

fn set_extent(managed: &mut DLManagedTensorVersioned, axis: i32, extent: i64) {
    assert!((0..managed.dl_tensor.ndim).contains(&axis));
    // SAFETY: the shape has `ndim` numbers.
    unsafe { *managed.dl_tensor.shape.add(axis as usize) = extent };
}

#[test]
fn what_makes_no_sense_is_refused_and_deleted_once() {
    type Edit = fn(&mut DLManagedTensorVersioned);
    let dtype = |code, bits, lanes| DlpackError::DType(DLDataType { code, bits, lanes });
    let cases: [(Edit, DlpackError); 15] = [
        (|m| m.version.major = 2, DlpackError::Version(DLPackVersion { major: 2, minor: 0 })),
        (|m| m.version.major = 0, DlpackError::Version(DLPackVersion { major: 0, minor: 0 })),
        (|m| m.dl_tensor.device.device_type = 2, DlpackError::DeviceType(2)),
        (|m| m.dl_tensor.device.device_type = -1, DlpackError::DeviceType(-1)),
        (|m| m.dl_tensor.dtype.lanes = 4, dtype(2, 32, 4)),
        (|m| m.dl_tensor.dtype.lanes = 0, dtype(2, 32, 0)),
        (|m| m.dl_tensor.dtype.bits = 8, dtype(2, 8, 1)),
        (|m| m.dl_tensor.dtype.code = 5, dtype(5, 32, 1)),
        (|m| m.dl_tensor.dtype.code = 17, dtype(17, 32, 1)),
        (|m| m.dl_tensor.ndim = -1, DlpackError::Rank(-1)),
        (|m| m.dl_tensor.shape = std::ptr::null_mut(), DlpackError::NoShape),
        (|m| m.dl_tensor.data = std::ptr::null_mut(), DlpackError::NoData),
        (|m| m.dl_tensor.byte_offset = u64::MAX, DlpackError::TooLarge),
        (|m| set_extent(m, 1, -3), DlpackError::Dimension { index: 1, value: -3 }),
        (|m| set_extent(m, 1, i64::MAX), DlpackError::TooLarge),
    ];
    let data = [0f32; 4];
    for (edit, expected) in cases {
        let mut foreign = Foreign::new(&[2, 2], None);
        assert_eq!(foreign.import(data.as_ptr().cast(), F32, 0, edit).err(), Some(expected));
        assert_eq!(foreign.deleted(), 1);
    }
    for strides in [[i64::MAX, 1], [i64::MIN, 1], [1 << 61, 1 << 61]] {
        let mut foreign = Foreign::new(&[2, 2], Some(&strides));
        assert_eq!(foreign.import(data.as_ptr().cast(), F32, 0, |_| {}).err(), Some(DlpackError::TooLarge));
        assert_eq!(foreign.deleted(), 1);
    }
}

#[test]
fn null_pointers_are_refused_and_deleters_may_be_missing() {
    // SAFETY: null is allowed.
    unsafe {
        assert_eq!(Imported::from_versioned(std::ptr::null_mut()).err(), Some(DlpackError::Null));
        assert_eq!(Imported::from_legacy(std::ptr::null_mut()).err(), Some(DlpackError::Null));
    }
    let data = [1f32, 2.0];
    let mut foreign = Foreign::new(&[2], None);
    let dl_tensor = foreign.tensor(data.as_ptr().cast(), F32, 0);
    let mut managed = DLManagedTensor { dl_tensor, manager_ctx: std::ptr::null_mut(), deleter: None };
    // SAFETY: the structure and the elements outlive the tensor.
    let imported = unsafe { Imported::from_legacy(&raw mut managed) }.unwrap();
    assert_eq!(f32s(imported.as_slice()), data);
}
