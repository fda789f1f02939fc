//! Layouts against the `dlpark` crate, and foreign numbers that make no sense.

use super::abi::*;
use super::*;
use core::mem::offset_of;
use simtile_types::DTypeId;

fn tensor(
    shape: &mut [i64],
    strides: Option<&mut [i64]>,
    dtype: DTypeId,
    address: u64,
    offset: u64,
) -> DLTensor {
    DLTensor {
        data: address as usize as *mut _,
        device: DLDevice { device_type: DLDeviceType::kDLCUDA, device_id: 0 },
        ndim: shape.len() as i32,
        dtype: to_dl(dtype).unwrap(),
        shape: shape.as_mut_ptr(),
        strides: strides.map_or(core::ptr::null_mut(), |strides| strides.as_mut_ptr()),
        byte_offset: offset,
    }
}

fn read(shape: &mut [i64], strides: Option<&mut [i64]>, offset: u64) -> Result<TensorLayout, DlpackError> {
    // SAFETY: the slices are as long as the shape.
    unsafe { TensorLayout::read(&tensor(shape, strides, DTypeId::F32, 0x1000, offset)) }
}

#[test]
fn structs_have_the_layout_that_another_implementation_gives_them() {
    use dlpark::ffi as theirs;
    macro_rules! same {
        ($name:ident: $($field:ident),*) => {
            assert_eq!(size_of::<$name>(), size_of::<theirs::$name>(), stringify!($name));
            assert_eq!(align_of::<$name>(), align_of::<theirs::$name>(), stringify!($name));
            $(assert_eq!(offset_of!($name, $field), offset_of!(theirs::$name, $field), stringify!($name.$field));)*
        };
    }
    same!(DLPackVersion: major, minor);
    same!(DLDevice: device_type, device_id);
    same!(DLDataType: code, bits, lanes);
    same!(DLTensor: data, device, ndim, dtype, shape, strides, byte_offset);
    same!(DLManagedTensor: dl_tensor, manager_ctx, deleter);
    same!(DLManagedTensorVersioned: version, manager_ctx, deleter, flags, dl_tensor);
}

#[test]
fn every_element_type_goes_there_and_back() {
    for &dtype in DTypeId::ALL {
        let Some(_) = to_dl(dtype) else {
            assert!(matches!(dtype, DTypeId::TF32 | DTypeId::F8E5M3FNU), "{dtype}");
            continue;
        };
        // SAFETY: no dimensions.
        let layout = unsafe { TensorLayout::read(&tensor(&mut [], None, dtype, 0x1000, 0)) }.unwrap();
        assert_eq!((layout.dtype(), layout.len()), (dtype, 1));
        assert_eq!(layout.bytes(), 0x1000..0x1000 + dtype.size_in_bytes() as u64);
    }
}

#[test]
fn compact_and_strided() {
    let compact = read(&mut [2, 3, 4], None, 16).unwrap();
    assert_eq!((compact.strides(), compact.bytes()), (&[12, 4, 1][..], 0x1010..0x1010 + 96));
    assert!(compact.is_compact());
    let column = read(&mut [3], Some(&mut [4]), 0).unwrap();
    assert_eq!(column.bytes(), 0x1000..0x1000 + 9 * 4);
    assert!(!column.is_compact());
    // Backwards: the first element is the highest.
    let reversed = read(&mut [3], Some(&mut [-1]), 0).unwrap();
    assert_eq!((reversed.first(), reversed.bytes()), (0x1000, 0xff8..0x1004));
    // Broadcast: many elements, few bytes; and more elements than a number holds.
    let broadcast = read(&mut [1 << 40, 1 << 40, 2], Some(&mut [0, 0, 1]), 0).unwrap();
    assert_eq!((broadcast.bytes(), broadcast.len()), (0x1000..0x1008, u64::MAX));
    assert!(!broadcast.is_compact());
    // One element along an axis: its stride says nothing.
    assert!(read(&mut [1, 4], Some(&mut [77, 1]), 0).unwrap().is_compact());
}

#[test]
fn no_elements_need_no_address() {
    let mut shape = [4, 0, 1 << 62];
    let mut none = tensor(&mut shape, None, DTypeId::F64, 0, 3);
    // SAFETY: the shape has three numbers.
    let overflow = unsafe { TensorLayout::read(&none) };
    assert!(matches!(overflow, Ok(ref layout) if layout.is_empty() && layout.is_compact()), "{overflow:?}");
    none.ndim = 0;
    // SAFETY: no dimensions, so one element.
    assert_eq!(unsafe { TensorLayout::read(&none) }, Err(DlpackError::NoData { bytes: 8 }));
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    assert_eq!(read(&mut [2, -1], None, 0), Err(DlpackError::NegativeLength { axis: 1, length: -1 }));
    assert!(matches!(read(&mut [1 << 40, 1 << 40], None, 0), Err(DlpackError::Overflow { .. })));
    assert!(matches!(read(&mut [2], Some(&mut [i64::MIN]), 0), Err(DlpackError::Overflow { .. })));
    assert!(matches!(read(&mut [2], None, u64::MAX), Err(DlpackError::Overflow { .. })));
    // Lower than address 0.
    assert!(matches!(read(&mut [2], Some(&mut [-(1 << 20)]), 0), Err(DlpackError::Overflow { .. })));
    assert_eq!(
        read(&mut [2], None, 2),
        Err(DlpackError::Misaligned { address: 0x1002, align: 4, dtype: DTypeId::F32 })
    );
    for ndim in [-1, MAX_DIMENSIONS as i32 + 1, i32::MIN, i32::MAX] {
        let mut bad = tensor(&mut [1], None, DTypeId::F32, 0x1000, 0);
        bad.ndim = ndim;
        // SAFETY: refused before the shape is read.
        assert_eq!(unsafe { TensorLayout::read(&bad) }, Err(DlpackError::Dimensions { ndim }));
    }
    let mut bad = tensor(&mut [1], None, DTypeId::F32, 0x1000, 0);
    bad.shape = core::ptr::null_mut();
    // SAFETY: null is allowed.
    assert_eq!(unsafe { TensorLayout::read(&bad) }, Err(DlpackError::NoShape { ndim: 1 }));
    for (code, bits, lanes) in [(2, 32, 4), (2, 16, 2), (3, 64, 1), (5, 64, 1), (255, 8, 1), (0, 12, 1)] {
        let mut bad = tensor(&mut [], None, DTypeId::F32, 0x1000, 0);
        bad.dtype = DLDataType { code: DLDataTypeCode(code), bits, lanes };
        // SAFETY: no dimensions.
        assert_eq!(unsafe { TensorLayout::read(&bad) }, Err(DlpackError::DataType { code, bits, lanes }));
    }
}
