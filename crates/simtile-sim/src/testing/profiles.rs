//! Devices of other profiles: what they say, what loads, and what launches.

use super::{Rig, code, ok};
use crate::{Profile, Simulator};
use simtile_driver::sys::*;

fn rig(profile: Profile) -> Rig {
    Rig::with(Simulator::builder().profile(profile))
}

/// Loads a kernel that does nothing, written for a target.
fn load(rig: &Rig, target: &str) -> CUresult {
    let text =
        format!(".version 8.8\n.target {target}\n.address_size 64\n.visible .entry nothing() {{ ret; }}\n\0");
    let mut module = CUmodule::NULL;
    code!(rig, cuModuleLoadData(&mut module, text.as_ptr().cast()))
}

#[test]
fn ptx_for_newer_devices_is_refused() {
    let all = ["sm_70", "sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_120"];
    for (profile, loads) in [
        (Profile::A100, &["sm_70", "sm_80"][..]),
        (Profile::Rtx4090, &["sm_70", "sm_80", "sm_89"]),
        (Profile::H200, &["sm_70", "sm_80", "sm_89", "sm_90", "sm_90a"]),
        (Profile::B200, &["sm_70", "sm_80", "sm_89", "sm_90", "sm_100", "sm_100a"]),
    ] {
        let rig = rig(profile);
        for target in all {
            let expected = if loads.contains(&target) {
                CUresult::CUDA_SUCCESS
            } else {
                CUresult::CUDA_ERROR_INVALID_PTX
            };
            assert_eq!(load(&rig, target), expected, "{target} on {profile:?}");
        }
        let reports = rig.sim.take_reports();
        assert!(reports.iter().all(|report| report.text.contains("the device is sm_")), "{reports:?}");
        assert_eq!(reports.len(), all.len() - loads.len());
    }
}

#[test]
fn clusters_came_with_nine() {
    for profile in Profile::ALL {
        let rig = rig(profile);
        let module = rig.module();
        let shape = rig.function(module, "shape");
        let memory = rig.memory(64);
        let mut attribute = CUlaunchAttribute {
            id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: CUlaunchAttributeValue {
                clusterDim: CUlaunchAttributeValue_clusterDim { x: 2, y: 1, z: 1 },
            },
        };
        let config = CUlaunchConfig {
            gridDimX: 2,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 1,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: 0,
            hStream: rig.stream(),
            attrs: &mut attribute,
            numAttrs: 1,
        };
        let mut list = [core::ptr::from_ref(&memory.base).cast_mut().cast()];
        let code = code!(rig, cuLaunchKernelEx(&config, shape, list.as_mut_ptr(), core::ptr::null_mut()));
        let (major, _) = profile.compute_capability();
        let expected = if major >= 9 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_NOT_SUPPORTED };
        assert_eq!(code, expected, "{profile:?}");
        let (mut clusters, mut capability) = (-1, -1);
        ok!(
            rig,
            cuDeviceGetAttribute(&mut clusters, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, 0)
        );
        let number = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
        ok!(rig, cuDeviceGetAttribute(&mut capability, number, 0));
        assert_eq!((clusters, capability), (i32::from(major >= 9), major as i32));
        ok!(rig, cuCtxSynchronize());
    }
}

#[test]
fn shared_memory_is_what_the_profile_has() {
    let most = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    for (profile, kib) in [
        (Profile::A100, 163),
        (Profile::Rtx4090, 99),
        (Profile::H200, 227),
        (Profile::B200, 227),
        (Profile::Small, 16),
    ] {
        let rig = rig(profile);
        let module = rig.module();
        let count = rig.function(module, "count");
        ok!(rig, cuFuncSetAttribute(count, most, kib << 10));
        assert_eq!(
            code!(rig, cuFuncSetAttribute(count, most, (kib << 10) + 1)),
            CUresult::CUDA_ERROR_INVALID_VALUE
        );
        let stream = rig.stream();
        assert!(rig.launch(count, [1; 3], [1; 3], (kib as u32) << 10, stream, &[]).is_ok(), "{profile:?}");
        ok!(rig, cuStreamSynchronize(stream));
    }
}
